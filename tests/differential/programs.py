"""Programs: messages, what their handlers do, how they end, and how the messages are cut into units."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from tests.differential import operations as ops
from tests.differential.models import ACCOUNTS, ORDERS
from tests.differential.operations import ASYNCPG, Operation


class Kind(Enum):
    """What a handler asks for, and whether it is asynchronous."""

    SESSION = "session"
    BOTH = "both"
    CONNECTION = "connection"
    DRIVER = "driver"
    PROVIDER = "provider"
    ENTITY = "entity"
    DEF = "def"
    DEF_SESSION = "def_session"
    DEF_CONNECTION = "def_connection"

    @property
    def is_async(self) -> bool:
        """Whether it is `async def`."""
        return not self.value.startswith("def")

    def allows(self, operation: type[Operation]) -> bool:
        """Return whether its handlers have what the operation needs."""
        if operation.needs == "context":
            return True
        if self is Kind.DRIVER:
            return operation.needs == "driver"
        if self in {Kind.CONNECTION, Kind.DEF_CONNECTION}:
            return operation.needs != "session"
        return True


class Ending(Enum):
    """How a handler ends."""

    RETURN = "return"
    RAISE = "raise"
    REJECT = "reject"
    TIME_OUT = "time out"
    BREAK = "break"
    """What it left is refused in the flush at the end, or a statement is, for a handler without a session."""
    BREAK_AT_COMMIT = "break at commit"


@dataclass(frozen=True)
class Message:
    """One message: what its handler does."""

    operations: tuple[Operation, ...]
    kind: Kind = Kind.SESSION
    ending: Ending = Ending.RETURN

    @property
    def fails(self) -> bool:
        """Whether its handler is made to fail."""
        return self.ending is not Ending.RETURN

    def __repr__(self) -> str:
        """Show only what is not the default."""
        kind = "" if self.kind is Kind.SESSION else f", kind={self.kind}"
        ending = f", ending={self.ending}" if self.fails else ""
        return f"Message({self.operations!r}{kind}{ending})"


@dataclass(frozen=True)
class Program:
    """Messages in the order in which they arrive, and the sizes of the units that they are received in."""

    messages: tuple[Message, ...]
    units: tuple[int, ...]

    def sizes(self) -> list[int]:
        """Return the sizes of all units: the last size is used until no message is left."""
        sizes, left = list[int](), len(self.messages)
        for size in self.units:
            sizes.append(min(size, left))
            left -= sizes[-1]
            if not left:
                return sizes
        return [*sizes, left]


def together(*messages: Message) -> Program:
    """Make a program of one unit."""
    return Program(messages, (len(messages),))


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "account": st.sampled_from((ACCOUNTS[0], ACCOUNTS[0], ACCOUNTS[1])),
    "amount": st.integers(1, 9),
    "fresh": st.sampled_from(("x", "y", ACCOUNTS[2])),
    "balance": st.integers(1, 99),
    "lines": st.integers(0, 2),
    "name": st.sampled_from((*ORDERS, "three")),
    "synchronize": st.sampled_from(("auto", "fetch", "evaluate", False)),
    "populate": st.booleans(),
    "lock": st.booleans(),
    "flagged": st.booleans(),
    "undo": st.booleans(),
}

OFTEN = (
    ops.Get,
    ops.Deposit,
    ops.LockAndDeposit,
    ops.CoreUpdate,
    ops.CoreRead,
    ops.AddOrder,
    ops.Remember,
    ops.Outside,
    ops.Publish,
    ops.SelectAll,
)
_ENDINGS = {ops.BreakNow, ops.BreakInFlush, ops.BreakAtCommit}
ALL: tuple[type[Operation], ...] = tuple(
    each for each in map(vars(ops).get, ops.__all__) if isinstance(each, type) and each not in {Operation, *_ENDINGS}
)
"""All operations of random programs, by name."""


def needs_own(steps: Sequence[Operation], database: str) -> bool:
    """Return whether these operations need a database transaction of their own. asyncpg's connection can be enclosed."""
    return any(each.own_transaction or (each.needs == "driver" and database != ASYNCPG) for each in steps)


def strategy_of(operation: type[Operation]) -> st.SearchStrategy[Operation]:
    """Return the operation with all of its values."""
    return st.builds(operation, **{each.name: _VALUES[each.name] for each in fields(operation)})


_STRATEGIES = {each: strategy_of(each) for each in ALL}


def kinds_on(database: str) -> tuple[Kind, ...]:
    """Return the kinds of handlers; those that are asked for most come first."""
    frequent = (Kind.SESSION, Kind.SESSION, Kind.BOTH, Kind.DEF)
    rare = (Kind.CONNECTION, Kind.PROVIDER, Kind.ENTITY, Kind.DEF_SESSION, Kind.DEF_CONNECTION)
    return (*frequent, *rare, Kind.DRIVER) if database == ASYNCPG else (*frequent, *rare)


@st.composite
def messages(draw: st.DrawFn, database: str, *, longest: int, may_fail: bool) -> Message:
    """Draw one message."""
    kind = draw(st.sampled_from(kinds_on(database)))
    usable = [each for each in ALL if database in each.where and kind.allows(each)]
    often = [each for each in OFTEN if each in usable]
    chosen = st.one_of(st.sampled_from(usable), st.sampled_from(often)) if often else st.sampled_from(usable)
    steps = [draw(_STRATEGIES[each]) for each in draw(st.lists(chosen, min_size=longest // 3, max_size=longest))]
    ending = Ending.RETURN
    if may_fail and draw(st.integers(0, 3)) == 3:
        ending = draw(st.sampled_from([each for each in Ending if each is not Ending.RETURN]))
    if ending is Ending.TIME_OUT:
        steps = [each for each in steps if not isinstance(each, ops.Outside)][:2]
    if needs_own(steps, database):  # it may run twice, and later than the others: what is outside may not
        steps = [each for each in steps if not isinstance(each, ops.Outside)]
    if kind is Kind.DRIVER and ending in {Ending.BREAK, Ending.BREAK_AT_COMMIT}:
        ending = Ending.RAISE
    return Message(tuple(steps), kind, ending)


@st.composite
def programs(draw: st.DrawFn, database: str) -> Program:
    """Draw a program of 2 to 100 messages. Most are small; large ones repeat a few messages."""
    may_fail = draw(st.booleans())
    made: Sequence[Message] = draw(st.lists(messages(database, longest=6, may_fail=may_fail), min_size=2, max_size=8))
    if draw(st.sampled_from((*[False] * 15, True))):
        times = draw(st.integers(2, 40))
        slow = {Ending.TIME_OUT, Ending.BREAK_AT_COMMIT}
        made = [each for each in made if each.ending not in slow] or made[:1]
        made = [each for _ in range(times) for each in made][:100]
        made = [*made, *made[:1]] if len(made) == 1 else made
    if any(each.ending is Ending.BREAK_AT_COMMIT for each in made):  # its unit is run in halves: what is outside is not undone
        made = [_without_outside(each) for each in made]
    units = draw(st.one_of(st.just([len(made)]), st.lists(st.integers(1, max(2, len(made))), min_size=1, max_size=4)))
    return Program(tuple(made), tuple(units))


def _without_outside(message: Message) -> Message:
    steps = tuple(each for each in message.operations if not isinstance(each, ops.Outside))
    return Message(steps, message.kind, message.ending)


__all__ = ["ALL", "Ending", "Kind", "Message", "Program", "needs_own", "programs", "together"]
