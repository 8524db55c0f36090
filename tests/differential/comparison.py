"""Runs a program on both sides and lists what differs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.differential.library import Shop
from tests.differential.programs import Ending, Program
from tests.differential.reference import run_plain
from tests.differential.world import Observed, World


@dataclass
class Counts:
    """How much was run."""

    programs: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    units: Counter[int] = field(default_factory=Counter)
    outside: Counter[bool] = field(default_factory=Counter)

    def note(self, database: str, program: Program) -> None:
        """Count a program."""
        self.programs[database] += 1
        self.messages[database] += len(program.messages)
        for message in program.messages:
            self.kinds[message.kind.value] += 1
            self.endings[message.ending.value] += 1
            self.operations.update(type(each).__name__ for each in message.operations)

    def lines(self) -> list[str]:
        """Describe it."""
        return [
            f"programs: {sum(self.programs.values()):,} {dict(self.programs)}",
            f"messages: {sum(self.messages.values()):,}",
            f"units by size: {dict(sorted(self.units.items()))}",
            f"units of 2 to 100 messages: {sum(count for size, count in self.units.items() if size > 1):,}",
            f"handlers: {dict(self.kinds.most_common())}",
            f"endings: {dict(self.endings.most_common())}",
            f"operations: {dict(self.operations.most_common())}",
            f"commits of another connection: {self.outside[True]:,}, and {self.outside[False]:,} that met a lock",
        ]


class Bench:
    """One database with both sides."""

    def __init__(self, world: World, counts: Counts | None = None) -> None:
        self.world = world
        self.shop = Shop(world)
        self.counts = counts or Counts()

    async def differences(self, program: Program) -> list[str]:
        """Run a program isolated and not; give what differs from the reference."""
        self.counts.note(self.world.name, program)
        found: list[str] = []
        for isolated in (False, True):
            found += await self.differences_when(program, isolated=isolated)
        return found

    async def differences_when(self, program: Program, *, isolated: bool) -> list[str]:
        """Run a program; give what differs from the reference."""
        ran = await self.shop.run(program, isolated=isolated)
        self.counts.units.update(self.shop.begun)
        self.counts.outside.update(done for run in ran.runs.values() for done in run.outside.values())
        expected = await run_plain(self.world, program, ran.order, ran.runs)
        way = "isolated" if isolated else "not isolated"
        return [f"{way}, handled in the order {ran.order}: {line}" for line in compare(program, ran, expected)]


def compare(program: Program, ran: Observed, expected: Observed) -> list[str]:
    """List what differs. What a handler read before its time was over depends on the speed of the machine."""
    late = {number for number, message in enumerate(program.messages) if message.ending is Ending.TIME_OUT}
    reads = [{number: it for number, it in each.reads.items() if number not in late} for each in (ran, expected)]
    return [
        *_unequal("rows of", ran.rows, expected.rows),
        *_unequal("reads of message", reads[0], reads[1]),
        *_unequal("sent by message", ran.sent, expected.sent),
        *_unequal("entity", ran.entities, expected.entities),
        *_unequal("failed", _named(ran.failed, ran, expected), _named(expected.failed, ran, expected)),
    ]


def _named(failed: Mapping[int, str], ran: Observed, expected: Observed) -> Mapping[int, str]:
    """Return reasons only where the other side has none: they have words of their own."""
    both = ran.failed.keys() & expected.failed.keys()
    return {number: "fails" if number in both else reason for number, reason in failed.items()}


def _unequal(what: str, ran: Mapping[Any, Any], expected: Mapping[Any, Any]) -> list[str]:
    return [
        f"{what} {key}: {ran.get(key)!r} instead of {expected.get(key)!r}"
        for key in sorted({*ran, *expected})
        if ran.get(key) != expected.get(key)
    ]
