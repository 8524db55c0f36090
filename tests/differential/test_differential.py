"""Random programs of handlers: through the library in units, and one by one with plain SQLAlchemy. Nothing may differ.

A program carries its rows from one unit to the next, so Hypothesis searches through sequences of units. `allowed.py` lists what
a handler can tell nevertheless. `python -m tests.differential --minutes 60` runs it for longer and prints what was run.
"""

import pytest

from tests.differential import operations as ops
from tests.differential.named import does, same
from tests.differential.programs import Kind
from tests.differential.run import Runner
from tests.servers.available import MEASURED

pytestmark = pytest.mark.slow

PROGRAMS = 100
"""Programs for each database."""
ONE_UNIT_IN = 4
"""At least one unit in four has several messages. Otherwise the run would prove nothing."""


@pytest.mark.timeout(600)  # a failure is reduced to its smallest program
@pytest.mark.repeated
def test_a_handler_in_a_unit_does_what_it_does_in_a_transaction_of_its_own(runner: Runner) -> None:
    """Rows, reads, messages sent and messages failed are equal, isolated or not, for the same programs on every run."""
    runner.check_many(PROGRAMS)
    counts = runner.bench.counts
    assert counts.programs[runner.name] >= PROGRAMS
    several = sum(count for size, count in counts.units.items() if size > 1)
    assert several * ONE_UNIT_IN >= sum(counts.units.values())
    shown = "; ".join(counts.lines()[:3])
    MEASURED.append(f"differential test on {runner.name}: {shown}")


def test_a_unit_of_a_hundred_messages_does_the_same(runner: Runner) -> None:
    """Half of them leave new objects, whose rows wait for the others."""
    half = (does(ops.AddOrder("x"), ops.Publish()), does(ops.CoreUpdate("a", 1), ops.Get("a"), kind=Kind.BOTH))
    same(runner, *half * 50)
    assert max(runner.bench.counts.units) == 100
