"""What the checks and the mutants came to, and what a person can read of it."""

from collections.abc import Iterable

from msgspec import Struct

from onceonly_verify.explorer import ExploredStep


class CheckResult(Struct, frozen=True, kw_only=True):
    """One check: `stuck` counts states from which rest cannot be reached, `missing` names what never happened but had to.

    `steps` is the shortest way to the violation, or to a stuck state.
    """

    algorithm: str
    bound: str
    states: int
    transitions: int
    seconds: float
    megabytes: int = 0
    """The most memory that its process had."""
    complete: bool
    violation: str = ""
    stuck: int = 0
    missing: tuple[str, ...] = ()
    steps: tuple[ExploredStep, ...] = ()

    @property
    def violations(self) -> int:
        """Count violations; the search ends at the first."""
        return 1 if self.violation else 0

    @property
    def passed(self) -> bool:
        """Return whether everything was seen and nothing was wrong."""
        return self.complete and not (self.violation or self.stuck or self.missing)


class MutantResult(Struct, frozen=True, kw_only=True):
    """One mutant: what caught it and where, or the reason why nothing did. `steps` is a way there."""

    name: str
    caught: bool
    check: str = ""
    violation: str = ""
    states: int = 0
    seconds: float = 0
    steps: tuple[ExploredStep, ...] = ()

    @property
    def passed(self) -> bool:
        return self.caught


def all_passed(results: Iterable[CheckResult | MutantResult]) -> bool:
    """Return whether every check passed and every mutant was caught; nothing at all proves nothing."""
    seen = list(results)
    return bool(seen) and all(result.passed for result in seen)


def render(result: CheckResult | MutantResult) -> str:
    """Write a result's history as numbered steps, and what is wrong at its end."""
    lines = [f"{n:3}. {s.who}: {s.what}: {s.outcome}" for n, s in enumerate(result.steps, 1)]
    if result.violation:
        lines.append(f"     => {result.violation}")
    elif isinstance(result, CheckResult) and result.stuck:
        lines.append("     => stuck: no final state can be reached from here")
    if isinstance(result, CheckResult):
        lines += [f"     never happened: {kind}" for kind in result.missing]
    return "\n".join(lines)
