"""What a handler changes on its session and its connection ends with it: the objects are its own."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import event, select

from tests.differential import operations as ops
from tests.differential.models import Account, Order
from tests.differential.named import does, same
from tests.differential.operations import POSTGRESQL, Operation
from tests.differential.programs import Ending, Kind, together
from tests.differential.run import Runner
from tests.differential.tools import Tools

KINDS = pytest.mark.parametrize("kind", [Kind.BOTH, Kind.DEF], ids=lambda kind: kind.value)


@dataclass(frozen=True)
class ChangeSession(Operation):
    """Sets attributes of the session."""

    async def run(self, to: Tools) -> None:
        """Set them."""
        synchronous = synchronous_of(to.session)
        synchronous.autoflush = False
        synchronous.info["left"] = to.message
        self.note(to, sorted(synchronous.info))


@dataclass(frozen=True)
class ReadSession(Operation):
    """Reads what a message may have set."""

    async def run(self, to: Tools) -> None:
        """Read it."""
        synchronous = synchronous_of(to.session)
        self.note(to, (synchronous.autoflush, synchronous.expire_on_commit, sorted(synchronous.info)))
        self.note(to, dict(synchronous_of(to.given).get_execution_options()).get("schema_translate_map"))


@dataclass(frozen=True)
class TranslateSchema(Operation):
    """Sets an option of the connection for all of its later statements."""

    async def run(self, to: Tools) -> None:
        """Have tables looked up in a schema that does not exist."""
        synchronous_of(to.given).execution_options(schema_translate_map={None: "nowhere"})


@dataclass(frozen=True)
class Listen(Operation):
    """Registers listeners on the session and the connection."""

    heard: list[str] = field(default_factory=list)

    async def run(self, to: Tools) -> None:
        """Listen."""
        self.heard.clear()

        def hear(*_: Any) -> None:
            self.heard.append("heard")

        event.listen(synchronous_of(to.session), "before_flush", hear)
        event.listen(synchronous_of(to.given), "before_execute", hear)


@dataclass(frozen=True)
class CountHeard(Operation):
    """Counts what the listeners of an earlier message hear during this one's statements."""

    heard: list[str]

    async def run(self, to: Tools) -> None:
        """Execute, flush and count."""
        self.heard.clear()
        await to.given.execute(select(Account.id))
        to.session.add(Order(name=f"heard-{to.message}"))
        await to.session.flush()
        self.note(to, len(self.heard))


@dataclass(frozen=True)
class LeaveStream(Operation):
    """Reads the first row of a result, and leaves the rest."""

    left: list[Any] = field(default_factory=list)

    async def run(self, to: Tools) -> None:
        """Read one row. Something keeps the result."""
        stream = await to.session.stream(select(Account.id).order_by(Account.id))
        self.note(to, tuple(await stream.fetchone()))
        self.left.append(stream)


@dataclass(frozen=True)
class LeaveNestedOfConnection(Operation):
    """`begin_nested` of the connection without an end."""

    account: str

    async def run(self, to: Tools) -> None:
        """Write inside it."""
        await to.given.begin_nested().__aenter__()
        await ops.CoreUpdate(self.account, 3).run(to)


@dataclass(frozen=True)
class ListenToFlush(Operation):
    """Registers a listener on the session that the flush at the handler's end calls."""

    heard: list[str] = field(default_factory=list)

    async def run(self, to: Tools) -> None:
        """Listen."""
        self.heard.clear()
        event.listen(synchronous_of(to.session), "before_flush", lambda *_: self.heard.append("heard"))


@dataclass(frozen=True)
class CountBefore(Operation):
    """Counts what a listener has heard before this message."""

    heard: list[str]

    async def run(self, to: Tools) -> None:
        """Count."""
        self.note(to, len(self.heard))


def synchronous_of(found: Any) -> Any:
    """Return the synchronous session or connection behind any form of it."""
    for name in ("synchronous", "sync_session", "sync_connection"):
        if name in dir(type(found)) or name in vars(found):
            return getattr(found, name)
    raise AssertionError(found)


@KINDS
def test_attributes_of_a_session_are_those_of_a_new_one(runner: Runner, kind: Kind) -> None:
    """`autoflush` and `info`."""
    same(runner, does(ChangeSession(), ReadSession(), kind=kind), does(ReadSession(), kind=kind))


@KINDS
def test_options_of_a_connection_end_with_its_handler(runner: Runner, kind: Kind) -> None:
    """The later message finds the tables."""
    later = does(ReadSession(), ops.CoreRead("a"), ops.Deposit("a", 1), kind=kind)
    same(runner, does(ops.CoreRead("a"), TranslateSchema(), kind=kind), later)


@KINDS
def test_listeners_on_a_session_and_a_connection_end_with_their_handler(runner: Runner, kind: Kind) -> None:
    """They hear nothing of a later message."""
    listen = Listen()
    same(runner, does(listen, kind=kind), does(CountHeard(listen.heard), kind=kind))


@KINDS
def test_a_listener_on_a_session_hears_the_flush_of_its_objects(runner: Runner, kind: Kind) -> None:
    """Objects of a session that somebody listens to do not wait for those of other messages."""
    listen = ListenToFlush()
    adds = does(ops.AddOrder("x"), kind=kind)
    same(runner, adds, does(ops.AddOrder("y"), listen, kind=kind), does(CountBefore(listen.heard), kind=kind))


def test_a_result_that_was_not_read_to_its_end_is_in_nobodys_way(runner: Runner) -> None:
    """Also where its rows are still on the server."""
    stream = LeaveStream()
    later = does(ops.Deposit("a", 1), ops.CoreRead("a"), kind=Kind.BOTH)
    same(runner, does(stream, kind=Kind.BOTH), later, does(stream, kind=Kind.BOTH))
    stream.left.clear()


@KINDS
def test_a_savepoint_that_a_message_left_open_ends_with_it(runner: Runner, kind: Kind) -> None:
    """Its work is kept, as a commit keeps it, and the next message is not inside it."""
    opens = does(ops.NestedLeftOpen("a"), ops.CountSession(), kind=kind)
    same(runner, opens, does(ops.CountSession(), ops.NestedRolledBack("a"), kind=kind), opens)
    same(runner, does(LeaveNestedOfConnection("a"), kind=kind), does(ops.CoreNestedDuplicate("a"), ops.Get("a"), kind=kind))


@KINDS
def test_a_failure_inside_an_open_savepoint_keeps_its_own_reason(runner: Runner, kind: Kind) -> None:
    """The handler has not ended the savepoint when it rejects its message."""
    rejected = does(ops.NestedLeftOpen("a"), kind=kind, ending=Ending.REJECT)
    for isolated in (False, True):
        ran = runner.run(runner.bench.shop.run(together(rejected, does(ops.Get("a"))), isolated=isolated))
        assert ran.failed == {0: "message 0 is rejected"}
    same(runner, does(ops.Deposit("a", 1)), rejected, does(ops.Get("a")))


@KINDS
def test_a_message_that_needs_its_own_transaction_inside_an_open_savepoint_runs_again(runner: Runner, kind: Kind) -> None:
    """Its first run ends in the middle of the savepoint."""
    needs_own = ops.AdvisoryLock() if runner.name in POSTGRESQL else ops.DroppedTemporaryTable()
    same(runner, does(ops.Deposit("a", 1)), does(ops.NestedLeftOpen("a"), needs_own, kind=kind), does(ops.Get("a")))


def test_what_a_provider_writes_in_its_clean_up_belongs_to_its_message(runner: Runner) -> None:
    """It is written with the message's own work, and sees its context."""
    work = does(ops.AddOrder("x"), ops.AddInCleanup(), kind=Kind.PROVIDER)
    same(runner, work, does(ops.CoreReadOrders()), work, does(ops.Count()))


def test_rows_that_messages_only_add_are_those_of_a_flush_for_each(runner: Runner) -> None:
    """Keys that collide, rows that refer to another message's, and objects that something keeps and changes."""
    added, refers = does(ops.AddAccount("x")), does(ops.AddReference("x"))
    same(runner, added, refers, does(ops.AddAndRemember()), does(ops.ChangeRemembered()), does(ops.SelectAll()))
    same(runner, added, added, does(ops.AddOrder("y")))
    same(runner, does(ops.AddAndRemember()), does(ops.ChangeRemembered(), ops.AddReference("y")), does(ops.AddOrder("y")))
    same(runner, does(ops.AddReference("x"), ops.AddAccount("x")), does(ops.AddReference("a")))
