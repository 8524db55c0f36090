"""Real child processes: replaced when they die, killed when they hang, stopped when asked, never left behind."""

import asyncio
import email
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from onceonly.runtime.processes.child import stopping_on_signals
from onceonly.runtime.processes.counters import HANDLED, HELD, SharedCounters
from onceonly.runtime.processes.early_start import SAFE_PATH, SETUP
from onceonly.runtime.processes.processes import ChildEvent, ChildEventKind, Supervisor
from tests import ROOT
from tests.runtime.processes import children
from tests.runtime.processes.children import (
    KEY,
    breaks,
    broken,
    exits_with_the_code_of_a_wrong_set_up,
    halted,
    idle,
    misconfigured,
    runs_alone,
    says_where_it_searches,
    second_is_misconfigured,
    stubborn,
    stuck,
)

STARTED, REPLACED, DIED = ChildEventKind.STARTED, ChildEventKind.REPLACED, ChildEventKind.DIED
UNRESPONSIVE, STOPPED, KILLED = ChildEventKind.UNRESPONSIVE, ChildEventKind.STOPPED, ChildEventKind.KILLED
HURRIED, UNFIT = ChildEventKind.HURRIED, ChildEventKind.UNFIT


@pytest.fixture
def counters(tmp_path: Path) -> SharedCounters:
    """A board with two rows."""
    with SharedCounters.create(tmp_path / "board", 2) as made:
        yield made


class Watched:
    """A running supervisor whose events can be waited for."""

    def __init__(
        self,
        target: Callable[..., None],
        counters: SharedCounters,
        *,
        processes: int = 1,
        grace: float = 10.0,
        watchdog: float = 20.0,
    ) -> None:
        self.events: list[ChildEvent] = []
        self.news: asyncio.Queue[ChildEvent] = asyncio.Queue()
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.supervisor = Supervisor(
            target,
            ("a", "b") if target is idle else (),
            processes=processes,
            counters=counters,
            watchdog=watchdog,
            grace=grace,
            on_event=self._heard,
        )
        self.exit_code = -1

    def _heard(self, event: ChildEvent) -> None:
        self.events.append(event)
        self.news.put_nowait(event)

    async def until(self, kind: ChildEventKind, times: int = 1) -> ChildEvent:
        """Wait for this many events of one kind; gives the last."""
        while True:
            event = await self.news.get()
            times -= event.kind is kind
            if times == 0:
                return event

    def kinds(self) -> list[ChildEventKind]:
        """Return what happened, in order."""
        return [event.kind for event in self.events]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Watched"]:
        """Run the supervisor; stop it at the end."""
        task = asyncio.create_task(self.supervisor.run(self.stop, self.hurry))
        try:
            yield self
        finally:
            self.stop.set()
            self.exit_code = await task


async def up(counters: SharedCounters, number: int) -> None:
    """Return when the children have counted this much."""
    while counters.total(HANDLED) < number:  # noqa: ASYNC110 - a mapped file tells nobody that it changed
        await asyncio.sleep(0.01)


async def test_children_run_and_stop_when_asked(counters: SharedCounters) -> None:
    """Both count in the shared counters, both stop within the grace time, and the exit code says so."""
    async with Watched(idle, counters, processes=2).running() as watched:
        await up(counters, 6)
        pids = watched.supervisor.pids()
    assert sorted(pids) == [0, 1]
    assert watched.kinds() == [STARTED, STARTED, STOPPED, STOPPED]
    assert watched.exit_code == 0
    assert watched.supervisor.pids() == {}


async def test_a_stop_during_the_start_is_not_missed(counters: SharedCounters) -> None:
    """SIGTERM reaches a child that is still importing its program; it answers as soon as it can."""
    async with Watched(idle, counters).running() as watched:
        await watched.until(STARTED)
    assert watched.kinds() == [STARTED, STOPPED]
    assert watched.exit_code == 0


async def test_a_killed_child_is_replaced_and_its_counts_survive(counters: SharedCounters) -> None:
    """SIGKILL leaves no time to clean up. Its counts stay in the shared counters; what it held is no longer held."""
    async with Watched(idle, counters).running() as watched:
        await up(counters, 3)
        counters.row(0).set(HELD, 5)
        assert [watched.supervisor.kill(0), watched.supervisor.kill(0)] == [True, False]
        died, replaced = await watched.until(DIED), await watched.until(REPLACED)
        await up(counters, 6)
    assert (died.exitcode, died.delay) == (-signal.SIGKILL, 0.0)
    assert replaced.pid != died.pid
    assert counters.row(0).get(HELD) == 0
    assert watched.exit_code == 0


async def test_a_kill_by_the_supervisor_is_recorded_before_the_messages_come_again(counters: SharedCounters) -> None:
    """Whoever receives them finds at once that the death is explained, and that nobody is blamed."""
    async with Watched(runs_alone, counters).running() as watched:
        await up(counters, 1)
        assert watched.supervisor.kill(0)
        other = counters.row(1)
        assert other.explains()
        assert (other.death_of(KEY), other.killed_run_of(KEY)) == (None, 2)
        other.remove_killed_runs(KEY, 2)
        await watched.until(REPLACED)
        assert (other.death_of(KEY), other.killed_run_of(KEY)) == (None, None)  # recorded once
        watched.hurry.set()


async def test_a_child_that_outstays_a_stop_blames_nobody(counters: SharedCounters) -> None:
    """The program may be started again with the same counters, after a change of a file."""
    async with Watched(runs_alone, counters, grace=0.05).running() as watched:
        await up(counters, 1)
    assert watched.kinds() == [STARTED, KILLED]
    other = counters.row(1)
    assert other.explains()
    assert (other.death_of(KEY), other.killed_run_of(KEY)) == (None, 2)


async def test_a_handler_that_stops_the_event_loop_is_known_to_its_supervisor(
    counters: SharedCounters, capfd: pytest.CaptureFixture[str]
) -> None:
    """No task is cancelled first: that would remove the mark of the running handler."""
    watched = Watched(halted, counters)
    async with watched.running():
        death = await watched.until(DIED)
        await watched.until(REPLACED)
        assert counters.row(0).death_of(KEY) == 2
    assert death.exitcode == 1
    assert "event loop stopped, process exiting" in capfd.readouterr().err


async def test_the_watchdog_kills_a_child_that_does_not_tick(
    counters: SharedCounters, capfd: pytest.CaptureFixture[str]
) -> None:
    """A handler that never ends holds the loop: the child shows where it hangs, is killed and replaced."""
    async with Watched(stuck, counters, watchdog=0.3, grace=0.05).running() as watched:
        unresponsive, died = await watched.until(UNRESPONSIVE), await watched.until(DIED)
        await watched.until(REPLACED)
    assert unresponsive.pid == died.pid
    assert "threading.py" in capfd.readouterr().err
    assert died.exitcode == -signal.SIGKILL


async def test_a_child_that_dies_at_once_is_replaced_more_and_more_slowly(counters: SharedCounters) -> None:
    """A program that cannot start does not burn the machine."""
    async with Watched(broken, counters).running() as watched:
        await watched.until(DIED, 3)
    delays = [event.delay for event in watched.events if event.kind is DIED]
    assert delays[:3] == [0.1, 0.2, 0.4]
    assert all(event.exitcode == 3 for event in watched.events if event.kind is DIED)


async def test_a_child_that_outstays_the_grace_time_is_killed(counters: SharedCounters) -> None:
    """The exit code tells that not all ended well."""
    async with Watched(stubborn, counters, grace=0.05).running() as watched:
        await up(counters, 1)
    assert watched.kinds() == [STARTED, KILLED]
    assert watched.exit_code == 1


async def test_a_child_that_is_killed_for_a_second_signal_did_not_outstay_anything(counters: SharedCounters) -> None:
    """What is told is the truth: somebody was in a hurry."""
    async with Watched(stubborn, counters, grace=60.0).running() as watched:
        await up(counters, 1)
        watched.hurry.set()
    assert watched.kinds() == [STARTED, HURRIED]
    assert watched.exit_code == 1


async def test_a_wrong_set_up_in_a_child_is_said_in_words(counters: SharedCounters, capfd: pytest.CaptureFixture[str]) -> None:
    """No traceback: a person has to change something, not to debug. It is not started again."""
    async with Watched(misconfigured, counters).running() as watched:
        unfit = await watched.until(UNFIT)
    err = capfd.readouterr().err
    assert unfit.exitcode == watched.exit_code == SETUP
    assert watched.kinds() == [STARTED, UNFIT]
    assert "SchemaMissing: run `onceonly schema create`" in err
    assert "Traceback" not in err


async def test_a_wrong_set_up_in_one_child_stops_the_others(counters: SharedCounters) -> None:
    """They finish their work. Nobody asked for the stop."""
    watched = Watched(second_is_misconfigured, counters, processes=2)
    assert await watched.supervisor.run(asyncio.Event()) == SETUP
    assert watched.kinds() == [STARTED, STARTED, UNFIT, STOPPED]
    assert watched.events[-1].exitcode == 0


async def test_a_handler_that_ends_its_process_with_that_exit_code_is_a_death(counters: SharedCounters) -> None:
    """A handler ran, so the set-up is right: the process is replaced, and the handler's message is blamed."""
    async with Watched(exits_with_the_code_of_a_wrong_set_up, counters).running() as watched:
        died = await watched.until(DIED)
        await watched.until(REPLACED)
        assert counters.row(0).death_of(KEY) == 2
    assert died.exitcode == SETUP


async def test_a_child_finds_its_own_modules_before_those_of_the_current_folder(
    counters: SharedCounters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot begin without those of the standard library. Then it searches where its parent does."""
    folder = tmp_path / "program"
    folder.mkdir()
    for name in ("queue", "socket", "pickle", "signal", "email", "unloaded"):
        (folder / f"{name}.py").write_text("orders = []\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv(SAFE_PATH, raising=False)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    async with Watched(says_where_it_searches, counters).running():
        await up(counters, 1)
    path, safe, found = json.loads((tmp_path / "search.json").read_text())
    assert (path, safe) == (sys.path, None)
    assert found == [email.__file__, str(folder / "unloaded.py")]
    assert SAFE_PATH not in os.environ


async def test_a_breakpoint_in_a_child_says_what_it_needs(counters: SharedCounters, tmp_path: Path) -> None:
    """There is no terminal from which a debugger could read."""
    async with Watched(breaks, counters).running() as watched:
        await watched.until(DIED)
    assert (tmp_path / "raised.txt").read_text() == "breakpoint() needs `onceonly run --debug`"


async def test_a_failing_listener_leaves_no_child_behind(counters: SharedCounters) -> None:
    """Whatever ends the supervisor, its children end with it."""

    def fail(event: ChildEvent) -> None:
        raise ValueError(event.kind)

    supervisor = Supervisor(idle, (), processes=1, counters=counters, watchdog=None, grace=1.0, on_event=fail)
    with pytest.raises(ValueError, match="started"):
        await supervisor.run(asyncio.Event())
    assert supervisor.pids() == {}


@asynccontextmanager
async def parent(tmp_path: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A parent process of its own group, with two children that are up; whoever is left of the group ends with it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        children.__name__,
        str(tmp_path / "board"),
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        ready = 0
        while ready < 2:
            line = await process.stdout.readline()
            assert line, "the parent ended before its children were up"
            ready += json.loads(line)["kind"] == "up"
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_parent_stops_everything_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM to the parent, or Ctrl-C to all of them: children finish, exit code 0, no traceback anywhere."""
    async with parent(tmp_path) as process:
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # what a terminal does
        else:
            process.send_signal(number)
        out, err = await process.communicate()
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert kinds.count("stopping") == kinds.count("stopped") == 2
    assert err == b""
    assert process.returncode == 0


async def test_children_notice_that_their_parent_was_killed(tmp_path: Path) -> None:
    """Nobody asks them, and they stop; the pipe they share ends when the last of them is gone."""
    async with parent(tmp_path) as process:
        process.kill()
        out, err = await process.communicate()
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["stopping", "stopping"]
    assert b"Traceback" not in err


async def test_children_that_do_not_stop_end_themselves_when_their_parent_was_killed(tmp_path: Path) -> None:
    """No supervisor is left to kill them, and their event loop may be blocked."""
    async with parent(tmp_path, "--lingering") as process:
        process.kill()
        out, err = await process.communicate()  # until the last of them has closed its end of the pipe
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["stopping", "stopping"]
    assert err.count(b"supervisor has ended and process does not stop, exiting") == 2


async def test_children_notice_it_even_when_another_process_holds_the_parents_end_of_their_pipes(tmp_path: Path) -> None:
    """A process that the parent forked lives on; the pipes do not end, but the children have another parent now."""
    async with parent(tmp_path, "--held") as process:
        process.kill()
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(2)]
        assert [json.loads(line)["kind"] for line in lines] == ["stopping", "stopping"]
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


ALONE = """
import asyncio
from onceonly.runtime.processes.child import run_here

async def main(stop):
    print("up", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    {rest}

run_here(main, one_asking=0)
print("done")
"""


@pytest.mark.parametrize(("rest", "times"), [("pass", 1), ("await asyncio.Event().wait()", 2)])
async def test_one_process_alone_answers_signals_too(rest: str, times: int) -> None:
    """The first one asks it to stop, the second ends it at once; either way without a traceback and with exit code 0."""
    program = [sys.executable, "-c", ALONE.format(rest=rest)]
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    lines = []
    for _ in range(times):
        lines.append(await process.stdout.readline())
        process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()
    assert (b"".join(lines) + out, err, process.returncode) == (b"up\nstopping\ndone\n", b"", 0)


@pytest.mark.parametrize(("one_asking", "hurried"), [(60.0, []), (0.0, ["hurry"])])
async def test_a_signal_that_comes_twice_at_once_asks_once(one_asking: float, hurried: list[str]) -> None:
    """`timeout` signals its child and the child's group: that is one person asking, who is in no hurry."""
    stop, said, twice = asyncio.Event(), list[str](), asyncio.Event()
    with stopping_on_signals(stop, lambda: said.append("hurry"), one_asking=one_asking):
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, twice.set)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGUSR2)  # delivered after the other one, in order of their numbers
        await twice.wait()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR2)
    assert said == hurried
