"""A handler neither ends the transaction of its unit nor writes on another connection without knowing it."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tests.differential import operations as ops
from tests.differential.models import START, Note
from tests.differential.named import UNCHANGED, WAYS, does
from tests.differential.operations import Operation
from tests.differential.programs import Kind, together
from tests.differential.run import Runner
from tests.differential.test_added_objects import Do
from tests.differential.tools import Tools


def _get(connection: Connection) -> Any:
    return connection.get_transaction()


ENDS: dict[str, Callable[[Connection], object]] = {
    "transaction.commit": lambda connection: _get(connection).commit(),
    "transaction.rollback": lambda connection: _get(connection).rollback(),
    "pool.commit": lambda connection: connection.connection.commit(),
    "pool.rollback": lambda connection: connection.connection.rollback(),
    "pool.close": lambda connection: connection.connection.close(),
    "pool.detach": lambda connection: connection.connection.detach(),
    "pool.invalidate": lambda connection: connection.connection.invalidate(),
    "dialect.do_commit": lambda connection: connection.dialect.do_commit(connection.connection),
    "session.commit": lambda connection: Session(connection, join_transaction_mode="control_fully").commit(),
}


def _between(*operations: Operation, kind: Kind) -> Any:
    return together(does(ops.Deposit("a", 5)), does(*operations, kind=kind), does(ops.Deposit("a", 7)))


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("kind", [Kind.BOTH, Kind.DEF], ids=lambda kind: kind.value)
@WAYS
def test_a_handler_that_reaches_for_the_transaction_fails_alone(
    runner: Runner,
    end: Callable[[Connection], object],
    kind: Kind,
    isolated: bool,  # noqa: FBT001 - a parameter
) -> None:
    """A COMMIT in the middle of a unit would also commit the claims of the messages that are not handled yet."""

    def reach(session: Session) -> None:
        connection = session.connection()
        connection.execute(text("UPDATE diff_accounts SET balance = 50 WHERE id = 'b'"))
        if end is ENDS["session.commit"]:
            own = Session(connection, join_transaction_mode="control_fully")
            own.execute(select(Note.id))
            own.commit()
        end(connection)

    async def work(to: Tools) -> None:
        if isinstance(to.session, AsyncSession):
            await to.session.run_sync(reach)
        else:
            reach(to.session.synchronous)

    ran = runner.run(runner.bench.shop.run(_between(Do(work), kind=kind), isolated=isolated))
    assert dict(ran.rows["accounts"]) == {**UNCHANGED, "a": START + 12}
    assert ran.failed.keys() == {1}


@pytest.mark.parametrize("way", ["bind_mapper", "bind_arguments", "connection"])
@WAYS
def test_a_session_does_not_write_on_a_connection_that_is_never_committed(
    runner: Runner,
    way: str,
    isolated: bool,  # noqa: FBT001 - a parameter
) -> None:
    """It would be rolled back without an error when the session is closed."""
    other = runner.bench.world.engine.sync_engine

    async def work(to: Tools) -> None:
        if way == "bind_mapper":
            to.session.sync_session.bind_mapper(Note, other)
            to.session.add(Note(what="bound"))
        elif way == "bind_arguments":
            await to.session.execute(insert(Note).values(what="bound"), bind_arguments={"bind": other})
        else:
            await to.session.connection(bind_arguments={"bind": other})

    ran = runner.run(runner.bench.shop.run(_between(Do(work), kind=Kind.SESSION), isolated=isolated))
    assert dict(ran.rows["accounts"]) == {**UNCHANGED, "a": START + 12}
    assert ran.failed.keys() == {1}
    assert not ran.rows["notes"]
