"""Running rules in forked processes: one for each mutant, from a process that has imported everything and changed nothing."""

import asyncio
import json
import os
import select
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple
from unittest import SkipTest

from onceonly.sql import queue
from onceonly.sql.store import documents, leases, ring, statements
from onceonly_conformance.suite import Suite
from onceonly_conformance.transport_suite import TransportSuite
from tests.mutants.bindings import Rule
from tests.mutants.generator import Mutant
from tests.mutants.swapping import Line, lines_using_constant, mutate, record_lines

Place = Callable[[Suite, int], None]
PATIENCE_SECONDS = 8.0
"""Seconds that a rule waits for an event before it fails."""
MANY = 53
"""Items in a call with very many of them. The run makes requests smaller than that, because ten thousand items take seconds."""
HANG_SECONDS = 90.0
"""Seconds after which one rule counts as hanging."""
WAIT_SECONDS = 45
"""The same while several rules run, without one that ends."""
BLOCKED_SECONDS = 30.0
"""Seconds of work for which a mutant may block the event loop before it counts as hanging."""


class Outcome(NamedTuple):
    """What became of a mutant: `caught` by `rule`, a `hang` of it, or `survived`, after so many rules and seconds."""

    mutant: str
    result: str
    rule: str
    error: str
    rules: int
    seconds: float


class Reach(NamedTuple):
    """Which lines each rule runs, and how many seconds it takes."""

    modules: Sequence[str]
    lines: Mapping[Rule, frozenset[Line]]
    seconds: Mapping[Rule, float]

    def rules_of(self, mutant: Mutant, caught: Mapping[str, int] | None = None) -> list[Rule]:
        """List the rules that run the mutant's statement: first those that caught other mutants of its function.

        Then the fastest come first. A constant is reached by the statements that use it.
        """
        lines = frozenset([(mutant.module, mutant.line)])
        if not mutant.change.function:
            lines = lines_using_constant(mutant, self.modules)
        there = [rule for rule, reached in self.lines.items() if not lines.isdisjoint(reached)]
        return sorted(there, key=lambda rule: (-(caught or {}).get(rule.name, 0), self.seconds[rule]))


def make_requests_small() -> None:
    """Let a statement take less than `MANY` keys, in this process and those that it forks. The code is the same."""
    statements.KEYS_AT_ONCE = documents.KEYS_AT_ONCE = ring.KEYS_AT_ONCE = queue.NAMES_AT_ONCE = MANY - 3
    statements.chunks.__defaults__ = (MANY - 3,)
    leases.FEW = MANY - 3


def measured_reach(modules: list[str], rules: Sequence[Rule], place: Place) -> Reach:
    """Run all rules on the adapter as it is. Raises AssertionError for a rule that fails."""

    def work(say: Callable[[Any], None]) -> None:
        lines = record_lines(modules)
        for rule in rules:
            lines.clear()
            begun = time.monotonic()
            error = _failure(rule, place, 0)
            say([[*rule], error, time.monotonic() - begun, sorted(lines)])

    pid, pipe = _forked(work)
    found = [*_read(pipe)]
    os.waitpid(pid, 0)
    failed = [f"{rule}: {error}" for rule, error, _, _ in found if error]
    if failed or len(found) < len(rules):
        raise AssertionError(f"{len(found)} of {len(rules)} rules ran on the adapter as it is; failed: {failed}")
    return Reach(
        modules,
        {Rule(*rule): frozenset((module, line) for module, line in lines) for rule, _, _, lines in found},
        {Rule(*rule): seconds for rule, _, seconds, _ in found},
    )


def outcomes(mutants: Iterable[Mutant], reach: Reach, place: Place, *, slots: int, at_once: int) -> Iterator[Outcome]:
    """Run the rules that reach each mutant, in `slots` processes at a time. Yields the outcomes as they come."""
    waiting = iter(mutants)
    running: dict[int, tuple[int, Mutant, int, float, int]] = {}  # by pipe: pid, mutant, slot, begin, number of rules
    free = list(range(slots))
    caught: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    while True:
        while free and (mutant := next(waiting, None)) is not None:
            rules = reach.rules_of(mutant, caught[mutant.module, mutant.change.function])
            if not rules:
                yield Outcome(mutant.name, "not reached", "", "", 0, 0.0)
                continue
            slot = free.pop()
            pid, pipe = _forked(_tried(mutant, rules, place, slot=slot, at_once=at_once))
            running[pipe] = (pid, mutant, slot, time.monotonic(), len(rules))
        if not running:
            return
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for pipe in ready:
            pid, mutant, slot, begun, count = running.pop(pipe)
            said = [*_read(pipe)]
            os.waitpid(pid, 0)
            free.append(slot)
            result, rule, error = said[-1] if said else ("caught", "", "its process ended")
            caught[mutant.module, mutant.change.function][rule] += result == "caught"
            yield Outcome(mutant.name, result, rule, error, count, round(time.monotonic() - begun, 1))


def _tried(
    mutant: Mutant, rules: Sequence[Rule], place: Place, *, slot: int, at_once: int
) -> Callable[[Callable[[Any], None]], None]:
    def work(say: Callable[[Any], None]) -> None:
        mutate(mutant)
        if at_once > 1:
            asyncio.run(_try_together(rules, lambda rule: _said(_call(rule, place, slot)), at_once, say))
        for rule in rules:
            _hang_after(HANG_SECONDS, rule, say)
            error = _failure(rule, place, slot)
            # a slow machine may fail a rule once: it has to fail twice
            if error and (error := _failure(rule, place, slot) if "Timeout" in error else error):
                say(("caught", rule.name, error))
                return
        say(("survived", "", ""))

    return work


def _hang_after(seconds: float, rule: Rule, say: Callable[[Any], None], *, working: bool = False) -> None:
    """End this process after so many seconds, as one that hangs. A later call replaces an earlier one.

    With `working` only seconds of work count.
    """

    def hang(*_: object) -> None:
        say(("hang", rule.name, ""))
        os._exit(0)

    signal.signal(signal.SIGPROF if working else signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_PROF if working else signal.ITIMER_REAL, seconds)


async def _try_together(
    rules: Sequence[Rule], run: Callable[[Rule], Coroutine[Any, Any, str]], at_once: int, say: Callable[[Any], None]
) -> None:
    """Run this many rules at a time, and end the process.

    A rule that fails is run again, alone. Those that this interrupts are started anew.
    """
    waiting = deque(rules)
    running: dict[asyncio.Task[str], Rule] = {}
    turns = 0  # since a rule has ended: seconds in which this process was stopped do not count
    while waiting or running:
        while waiting and len(running) < at_once:
            rule = waiting.popleft()
            running[asyncio.create_task(run(rule))] = rule
        longest = next(iter(running.values()))
        _hang_after(BLOCKED_SECONDS, longest, say, working=True)
        done, _ = await asyncio.wait(running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        turns = 0 if done else turns + 1
        if turns > WAIT_SECONDS:
            say(("hang", longest.name, ""))
            os._exit(0)
        failed = [running[task] for task in done if task.result()]
        for task in done:
            del running[task]
        if failed:
            waiting.extendleft([*failed[1:], *running.values()])
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=PATIENCE_SECONDS)
            running.clear()
            await _try_alone(failed[0], run, say)
    say(("survived", "", ""))
    os._exit(0)


async def _try_alone(rule: Rule, run: Callable[[Rule], Coroutine[Any, Any, str]], say: Callable[[Any], None]) -> None:
    """Run a rule that has failed beside others. End the process if it fails again."""
    _hang_after(BLOCKED_SECONDS, rule, say, working=True)
    again = asyncio.create_task(run(rule))
    for _ in range(WAIT_SECONDS):
        await asyncio.wait([again], timeout=1.0)
        if again.done():
            break
    error = again.result() if again.done() else ""
    if error or not again.done():
        say(("caught" if error else "hang", rule.name, error))
        os._exit(0)


def _failure(rule: Rule, place: Place, slot: int) -> str:
    try:
        return asyncio.run(_said(_call(rule, place, slot)))
    except Exception as error:  # noqa: BLE001 - whatever a mutant raises
        return _words(error)


def _call(rule: Rule, place: Place, slot: int) -> Any:
    suite: Any = getattr(import_module(rule.module), rule.suite)()
    suite.patience = PATIENCE_SECONDS
    suite.many = min(suite.many, MANY)
    if isinstance(suite, TransportSuite):
        suite.destinations = min(suite.destinations, MANY)
    place(suite, slot)
    return getattr(suite, rule.rule)()


async def _said(call: Any) -> str:
    try:
        await call
    except SkipTest:
        return ""
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever a mutant raises
        return _words(error)
    return ""


def _words(error: BaseException) -> str:
    line = next(
        (str(frame.lineno) for frame in reversed(traceback.extract_tb(error.__traceback__)) if "_suite" in frame.filename), ""
    )
    return f"{type(error).__name__} at line {line}: {' '.join(str(error).split())[:120]}"


def _forked(work: Callable[[Callable[[Any], None]], None]) -> tuple[int, int]:
    """Fork a process that works, and says JSON through a pipe. Its other output is thrown away."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        work(lambda words: _write(writer, json.dumps(words).encode() + b"\n"))
    except BaseException as error:  # noqa: BLE001 - the process ends here
        _write(writer, json.dumps(("caught", "", _words(error))).encode() + b"\n")
    finally:
        os._exit(0)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _read(pipe: int) -> Iterator[Any]:
    with os.fdopen(pipe, "rb") as lines:
        for line in lines:
            yield json.loads(line)
