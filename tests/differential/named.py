"""What the tests of named faults share: a few messages in one unit."""

import pytest

from tests.differential.models import START
from tests.differential.operations import Operation
from tests.differential.programs import Ending, Kind, Message, together
from tests.differential.run import Runner

WAYS = pytest.mark.parametrize("isolated", [False, True], ids=["not isolated", "isolated"])
UNCHANGED = dict.fromkeys("abc", START)
"""The balances at the start."""


def does(*operations: Operation, kind: Kind = Kind.SESSION, ending: Ending = Ending.RETURN) -> Message:
    """Make a message."""
    return Message(operations, kind, ending)


def same(runner: Runner, *messages: Message) -> None:
    """Compare one unit, isolated and not, with one transaction for each message."""
    runner.check(together(*messages))


def accounts(runner: Runner, *messages: Message, isolated: bool = False) -> dict[str, int]:
    """Run messages in one unit; give the balances after it."""
    ran = runner.run(runner.bench.shop.run(together(*messages), isolated=isolated))
    assert not ran.failed
    return dict(ran.rows["accounts"])


def only_on(runner: Runner, databases: frozenset[str]) -> None:
    """Skip a test where a database does not have what it is about."""
    if runner.name not in databases:
        pytest.skip(f"{runner.name} does not have this")
