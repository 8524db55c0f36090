"""The gate of a process in every order of units, runs alone and cancellations that Hypothesis finds."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from onceonly.runtime.worker.isolated_runs import GateMember, UnitGate

SPINS = 400
"""Turns of the event loop in which all units must have ended."""


class Use(NamedTuple):
    """One use of the gate: after some turns of the loop, for some turns, and cancelled after some more if it is not over."""

    alone: bool
    after: int
    lasts: int
    cancelled: int | None


USES = st.lists(
    st.builds(Use, st.booleans(), st.integers(0, 4), st.integers(0, 4), st.none() | st.integers(0, 6)), min_size=2, max_size=7
)

FOUND = settings(max_examples=300, deadline=None, derandomize=True)
REOPENED = [Use(alone=True, after=0, lasts=1, cancelled=None), Use(alone=False, after=1, lasts=2, cancelled=None)]
REOPENED += [Use(alone=True, after=2, lasts=1, cancelled=None)]
"""One that is alone ends, and another one takes the process before a unit that waited begins."""


class Process:
    """What runs in a process now. `wrong` names the first rule that was broken."""

    def __init__(self, gate: UnitGate) -> None:
        self._gate = gate
        self._running = 0
        self._is_alone = False
        self.wrong = ""

    async def use(self, use: Use) -> None:
        """Run one unit, as a loop of a worker does."""
        await turns(use.after)
        member = GateMember()
        member._gate = self._gate
        if use.alone:
            await member.clear()
        elif not await member.enter():
            self.wrong = self.wrong or "a unit is not counted"
        if self._is_alone or (use.alone and self._running):
            self.wrong = self.wrong or "a unit runs beside one that is alone"
        self._running += 1
        self._is_alone = use.alone
        try:
            await turns(use.lasts)
        finally:
            self._running -= 1
            self._is_alone = False
            (member.reopen if use.alone else member.leave)()


async def turns(count: int) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


def broken_rule(gate: type[UnitGate], uses: Sequence[Use]) -> str:
    """Return the rule that this gate breaks in this order; empty for none."""

    async def run() -> str:
        process = Process(gate())
        tasks = [asyncio.create_task(process.use(use)) for use in uses]
        for turn in range(SPINS):
            for task, use in zip(tasks, uses, strict=True):
                if turn == use.cancelled:
                    task.cancel()
            await asyncio.sleep(0)
            if all(task.done() for task in tasks):
                break
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        raised = [each for each in ended if each is not None and not isinstance(each, asyncio.CancelledError)]
        return process.wrong or ("a unit waits without end" if left else "") or (f"raised {raised[0]!r}" if raised else "")

    return asyncio.run(run())


@settings(FOUND)
@given(USES)
@example(REOPENED)
def test_a_unit_that_is_alone_has_the_process_to_itself_and_every_unit_ends(uses: list[Use]) -> None:
    """Also when units are cancelled while they wait or run."""
    assert broken_rule(UnitGate, uses) == ""


class LooksOnce(UnitGate):
    """Does not look again whether the gate is open when it was opened."""

    async def enter(self, name: str = "", *, patience: float | None = None) -> None:
        """Wait once."""
        await self._open.wait()
        self._inside[name] += 1
        self._empty.clear()


class OpensEarly(UnitGate):
    """Counts the first unit that ends as the last one."""

    def leave(self, name: str = "") -> None:
        """Take the process for empty."""
        super().leave(name)
        self._empty.set()


class DoesNotWait(UnitGate):
    """Takes the process while units run."""

    async def clear(self, name: str = "", *, patience: float | None = None) -> None:
        """Close the gate, and go on."""
        await self._alone.acquire()
        self._open.clear()


class StaysClosed(UnitGate):
    """Keeps the process when the wait for it is cancelled."""

    async def clear(self, name: str = "", *, patience: float | None = None) -> None:
        """Forget to open."""
        await self._alone.acquire()
        self._open.clear()
        await self._empty.wait()


class KeepsTurn(UnitGate):
    """Lets units in again, but no other one that must run alone."""

    def reopen(self) -> None:
        """Keep the lock."""
        self._open.set()


class LetsTwoIn(UnitGate):
    """Has no order among those that are alone."""

    async def clear(self, name: str = "", *, patience: float | None = None) -> None:
        """Close the gate without the lock."""
        self._open.clear()
        await self._empty.wait()

    def reopen(self) -> None:
        """Open."""
        self._open.set()


@pytest.mark.parametrize("gate", [LooksOnce, OpensEarly, DoesNotWait, StaysClosed, KeepsTurn, LetsTwoIn])
def test_a_broken_gate_is_found(gate: type[UnitGate]) -> None:
    """Otherwise the test above proves nothing."""
    if broken_rule(gate, REOPENED):
        return
    checked = settings(FOUND, suppress_health_check=list(HealthCheck), phases=[Phase.generate], database=None)
    try:
        find(USES, lambda uses: bool(broken_rule(gate, uses)), settings=checked)
    except NoSuchExample:
        pytest.fail(f"{gate.__name__} breaks no rule in {checked.max_examples} orders")
