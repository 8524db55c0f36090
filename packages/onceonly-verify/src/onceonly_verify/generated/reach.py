"""Which check reaches which line of the algorithms. Recorded by exploring each check with probes before every statement.

Random schedules of each check reach what lies deeper than the states that are explored.
"""

import ast
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from onceonly_verify.check import Check
from onceonly_verify.checks import CHECKS
from onceonly_verify.mutations import CodeChange
from onceonly_verify.mutations.edits import EditOperation
from onceonly_verify.mutations.scope import DefinitionScope, Function
from onceonly_verify.processes import Tell, side_by_side
from onceonly_verify.programs import changed
from onceonly_verify.runs import explore
from onceonly_verify.schedules import Walk
from onceonly_verify.simulation import at_once
from onceonly_verify.world_player import InitialState

TOGETHER = 8
"""Checks that one process explores, one after another."""
WALKS = 8
"""Random schedules of each check."""
_HITS: set[tuple[str, int]] = set()


def hit(module: str, line: int) -> None:
    """Record that the program reached a line."""
    _HITS.add((module, line))


class CheckReach(Struct, frozen=True, kw_only=True):
    """What one check reaches: lines by module, and the number of states that it took to explore."""

    check: str
    lines: frozenset[tuple[str, int]]
    states: int
    complete: bool


class Reach(Struct, frozen=True):
    """What all checks reach, the cheapest check first."""

    each: tuple[CheckReach, ...]

    def checks_for(self, module: str, line: int, first: int, last: int) -> tuple[str, ...]:
        """Return the checks that reach a line. If none is known, those that reach its function, from `first` to `last`."""
        reaching = [each.check for each in self.each if (module, line) in each.lines]
        if not reaching:
            lines = {(module, number) for number in range(first, last + 1)}
            reaching = [each.check for each in self.each if lines & each.lines]
        return tuple(reaching)


def record_reach(
    modules: Sequence[str],
    checks: Sequence[Check] = CHECKS,
    *,
    limit: int,
    jobs: int = 0,
    done: Callable[[CheckReach], None] | None = None,
) -> Reach:
    """Explore checks up to a number of states each, and record the lines of these modules that they reach."""
    tasks = [(tuple(checks[at : at + TOGETHER]), tuple(modules), limit) for at in range(0, len(checks), TOGETHER)]
    parts = side_by_side(_record, tasks, jobs=jobs, told=done)
    return Reach(tuple(sorted((each for part in parts for each in part), key=lambda each: each.states)))


def _record(task: tuple[Sequence[Check], Sequence[str], int], tell: Tell) -> list[CheckReach]:
    checks, modules, limit = task
    probes = [CodeChange(module, "", (EditOperation(change=_add_probes, key=module),)) for module in modules]
    programs = changed(probes)
    results = []
    for check in checks:
        _HITS.clear()
        found, _ = explore(check, programs, limit=limit)
        if not found.complete:
            opening = InitialState(check, programs)
            for number in range(WALKS):
                at_once(Walk(opening, f"{check.name}:{number}").go())
        results.append(CheckReach(check=check.name, lines=frozenset(_HITS), states=found.states, complete=found.complete))
        tell(results[-1])
    return results


def _add_probes(scope: DefinitionScope, operation: EditOperation) -> None:
    """Call `hit` before every statement of every function."""
    for block in list(_blocks(scope.module)):
        block[:] = [part for statement in block for part in (_probe(str(operation.key), statement), statement)]
    (imported,) = ast.parse(f"from {__name__} import hit as _hit").body
    scope.module.body.insert(1, imported)


def _blocks(module: ast.Module) -> Iterator[list[ast.stmt]]:
    inside = {node for function in ast.walk(module) if isinstance(function, Function) for node in ast.walk(function)}
    for node in inside:
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _probe(module: str, statement: ast.stmt) -> ast.stmt:
    (probe,) = ast.parse(f"_hit({module!r}, {statement.lineno})").body
    return ast.copy_location(probe, statement)
