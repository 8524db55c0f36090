"""What a handler left running and uses its session or connection after its end: it is refused, and writes nothing."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.differential import operations as ops
from tests.differential.late import USES, Gate, LeaveTask, LeaveThread, OpenGate, Use
from tests.differential.models import START
from tests.differential.named import UNCHANGED, WAYS, accounts, does, only_on, same
from tests.differential.operations import ASYNCPG
from tests.differential.programs import Kind
from tests.differential.run import Runner
from tests.differential.test_added_objects import doing
from tests.differential.tools import Tools


def assert_refused(gate: Gate) -> None:
    """Check what became of the late use."""
    (error,) = gate.errors
    assert "after its handler ended" in error


@pytest.fixture
def gate(runner: Runner) -> Iterator[Gate]:
    """Let nothing wait at the end of a test that failed."""
    made = Gate()
    yield made
    runner.run(made.open())


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@WAYS
def test_a_task_that_a_message_left_running_writes_nothing_into_a_later_messages_transaction(
    runner: Runner,
    gate: Gate,
    use: Use,
    isolated: bool,  # noqa: FBT001 - a parameter
) -> None:
    """It is refused, with an error that names the reason."""
    first, second = does(LeaveTask(gate, use), kind=Kind.BOTH), does(OpenGate(gate), ops.Deposit("a", 1))
    assert accounts(runner, first, second, isolated=isolated) == {**UNCHANGED, "a": START + 1}
    assert_refused(gate)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_task_that_a_message_left_running_writes_nothing_after_the_unit(runner: Runner, gate: Gate, use: Use) -> None:
    """The connection may have another transaction by then."""
    accounts(runner, does(LeaveTask(gate, use), kind=Kind.BOTH))
    runner.run(gate.open())
    assert_refused(gate)
    assert dict(runner.run(runner.bench.world.rows())["accounts"]) == UNCHANGED


@WAYS
def test_a_thread_that_a_message_left_running_adds_nothing_to_a_later_messages_transaction(
    runner: Runner,
    gate: Gate,
    isolated: bool,  # noqa: FBT001 - a parameter
) -> None:
    """A `def` handler's session, used by a thread of its own."""
    first, second = does(LeaveThread(gate), kind=Kind.DEF), does(OpenGate(gate), ops.Deposit("a", 1))
    assert accounts(runner, first, second, isolated=isolated) == {**UNCHANGED, "a": START + 1}
    assert_refused(gate)


Driver = Callable[[Any], Coroutine[Any, Any, object]]
DRIVER_USES: dict[str, Driver] = {
    "execute": lambda driver: driver.execute("UPDATE diff_accounts SET balance = 999 WHERE id = 'b'"),
    "copy": lambda driver: driver.copy_records_to_table("diff_accounts", records=[("late", 999)]),
    "fetch": lambda driver: driver.fetch("SELECT 1"),
}


@pytest.mark.parametrize("use", DRIVER_USES.values(), ids=DRIVER_USES)
@WAYS
def test_what_the_driver_is_asked_in_a_handler_and_does_after_its_end_is_refused(
    runner: Runner,
    gate: Gate,
    use: Driver,
    isolated: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Such as `asyncio.create_task(driver.execute(...))` in the last line of a handler."""
    only_on(runner, frozenset({ASYNCPG}))

    async def ask(to: Tools) -> None:
        asked = use((await to.given.get_raw_connection()).driver_connection)
        gate.tasks.append(asyncio.ensure_future(gate.try_later(lambda: asked)))

    first, second = doing(ask, Kind.BOTH), does(OpenGate(gate), ops.Deposit("a", 1))
    assert accounts(runner, first, second, isolated=isolated) == {**UNCHANGED, "a": START + 1}
    assert_refused(gate)


def test_the_driver_begins_no_transaction_for_a_handler(runner: Runner) -> None:
    """After the unit its connection serves others."""
    only_on(runner, frozenset({ASYNCPG}))
    kept: list[Any] = []

    async def keep(to: Tools) -> None:
        kept.append((await to.given.get_raw_connection()).driver_connection)
        for name in ("transaction", "cursor"):
            with pytest.raises(RuntimeError, match=rf"{name}\(\) of the driver's connection is not allowed"):
                getattr(kept[0], name)(*(["SELECT 1"] if name == "cursor" else []))

    assert accounts(runner, doing(keep, Kind.BOTH)) == UNCHANGED
    for name in ("transaction", "cursor"):
        with pytest.raises(RuntimeError, match="after its handler ended"):
            getattr(kept[0], name)()


def test_what_a_message_keeps_is_not_written_by_a_later_one(runner: Runner) -> None:
    """Neither an object nor a session that is used without a task."""
    same(runner, does(ops.Remember("b"), kind=Kind.DEF), does(ops.ChangeRemembered(), ops.Flush(), kind=Kind.DEF))
    assert dict(runner.run(runner.bench.world.rows())["accounts"]) == UNCHANGED
