"""Flask and Celery under kills: with onceonly each step of an order is done once, and without it some are lost or doubled."""

import ast
from difflib import ndiff

import pytest

from examples.hosts.celery_flask.running import PROGRAMS, Counts, Places, run
from examples.hosts.harness import ROOT
from tests.servers.available import MEASURED, POSTGRESQL, RABBITMQ, REDIS, need

FOLDER = ROOT / "examples" / "hosts" / "celery_flask"
BROKERS = ["rabbitmq", pytest.param("redis", marks=pytest.mark.repeated)]


def places(broker: str) -> Places:
    """Return where it runs; skips the test without its servers."""
    return Places(need(POSTGRESQL), need({"rabbitmq": RABBITMQ, "redis": REDIS}[broker]), need(REDIS))


def note(counts: Counts) -> None:
    """Print the numbers of a run at the end of the session."""
    MEASURED.append(
        f"celery, {counts.program}, {counts.broker}: {counts.kills} kills, {counts.orders} orders, {counts.lost} lost,"
        f" {counts.doubled} doubled; {counts.seconds:g} s"
    )


@pytest.mark.slow
@pytest.mark.timeout(500)  # longer than the run waits
@pytest.mark.parametrize("broker", BROKERS)
async def test_each_step_is_done_once_when_processes_are_killed_again_and_again(broker: str) -> None:
    """A third of the tasks came twice, and clients repeated their requests."""
    counts = await run(PROGRAMS["exactly_once"], places(broker), orders=90, kills=20)
    note(counts)
    assert counts.kills == 20
    assert counts.is_exact, counts


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize(
    ("program", "broken"),
    [("defaults", "lost"), pytest.param("acks_late", "doubled", marks=pytest.mark.repeated)],
)
async def test_the_same_application_without_onceonly_loses_or_doubles(broker: str, program: str, broken: str) -> None:
    """So the run above can fail: Celery loses the tasks of a process that dies, and with `acks_late` it repeats some."""
    counts = await run(PROGRAMS[program], places(broker), orders=80, kills=16)
    note(counts)
    assert getattr(counts, broken), counts
    assert not counts.is_exact


def test_a_task_changes_in_two_lines() -> None:
    """In its signature and where its session was opened. What it sends stays as it was; events are published."""
    for name in ("pack", "ship"):
        before, after = (lines_of((FOLDER / file).read_text(), name) for file in ("control.py", "exactly_once.py"))
        changed = [line for line in ndiff(before, after) if line.startswith("+")]
        assert 0 < len(changed) <= 2, "\n".join(changed)


def lines_of(source: str, name: str) -> list[str]:
    """Return the lines of a function, without indentation."""
    found = next(node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == name)
    assert isinstance(found, ast.FunctionDef)
    return [line.strip() for line in source.splitlines()[found.lineno - 1 : found.end_lineno]]
