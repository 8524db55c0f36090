"""Counterexamples as files: saved when something is wrong, replayed on an event loop when somebody doubts it."""

import asyncio
import re

import typer

from onceonly.cli.output import NEGATIVE, print_error, say, show, show_json
from onceonly_verify.explorer import ExploredStep
from onceonly_verify.histories import Counterexample, load, save
from onceonly_verify.replay import ReplayResult, replay

NOT_REPRODUCED = 3
"""Exit code: the counterexample was replayed, and nothing bad came of it."""


def keep(history: Counterexample, file: str | None) -> None:
    """Save a counterexample in this file, or in one named after its check or mutant, and say how to replay it."""
    name = file or f"counterexample-{_slug(history.mutant or history.check)}.json"
    try:
        save(history, name)
    except OSError as error:
        print_error(f"cannot save the counterexample to {name}: {error.strerror or error}")
    else:
        say(f"counterexample saved to {name}. Replay it on an asyncio event loop: onceonly verify --replay {name}")


def replay_file(file: str, *, as_json: bool) -> None:
    """Replay a saved counterexample; ends the command: 1 when it ends badly again, 3 when it does not."""
    history = load(file)
    steps: list[ExploredStep] = []

    def tell(number: int, step: ExploredStep) -> None:
        steps.append(step)
        if not as_json:
            show(f"{number:3}. {step.who}: {step.what}: {step.outcome}")

    if not as_json:
        version = f"mutant {history.mutant!r}" if history.mutant else "the shipping code"
        show(f"Replaying {version} in check {history.check!r}. The workers are asyncio tasks.")
    found = asyncio.run(replay(history, tell))
    if as_json:
        told = [{"who": step.who, "what": step.what, "outcome": step.outcome} for step in steps]
        show_json({"reproduced": found.reproduced, "violation": found.violation, "expected": found.expected, "steps": told})
    else:
        _exit_with_result(found)
    raise typer.Exit(NEGATIVE if found.reproduced else NOT_REPRODUCED)


def _exit_with_result(found: ReplayResult) -> None:
    if found.reproduced:
        show(f"     => {found.violation}")
        show(
            f"Reproduced in {found.steps} steps."
            if found.is_the_same
            else f"Reproduced with another violation. The saved one is: {found.expected}"
        )
    elif found.diverged:
        print_error(f"not reproduced: the code differs from the counterexample: {found.diverged}")
    else:
        print_error(
            f"not reproduced: all {found.steps} steps ran as saved, without a violation. The saved one is: {found.expected}"
        )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
