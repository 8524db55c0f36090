"""`onceonly run --debug`: `breakpoint()` in a handler has the terminal, and any time."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.cli.terminal import PROGRAM, Running, Terminal

pytestmark = pytest.mark.slow

HASTY = Path(__file__).with_name("debug_program.py").read_text()
PATIENT = HASTY.replace("grace=0.01", "grace=10")
WAKE = "\n"
"""A line after a signal: one that comes just before the debugger waits for a line is handled after that."""
PROMPT = "(Pdb) "
SHOW = "p 'order is ' + order.order_id\n"


@contextmanager
def debugging(onceonly: Terminal, kind: str, program: str = HASTY) -> Iterator[tuple[Running, IO[str]]]:
    """Send a message of this type and run the program; gives the command and its terminal, once the prompt is open."""
    (onceonly.folder / "stops.py").write_text(program)
    onceonly.write("orders.jsonl", [{"order_id": "A-1"}])
    assert onceonly("send", "orders.jsonl", "--to", "stops:shop", "--type", kind, "--id-from", "order_id").code == 0
    with debugged(onceonly) as (run, commands):
        yield run, commands


@contextmanager
def debugged(onceonly: Terminal) -> Iterator[tuple[Running, IO[str]]]:
    """Run the program; gives the command and its terminal, once the prompt is open."""
    command = [*PROGRAM, "run", "stops:shop", "--debug", "--log-level", "debug"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=onceonly.folder, text=True, bufsize=1, **pipes) as process:
        try:
            assert process.stdin is not None
            run = Running(process)
            run.until_prompt(PROMPT)
            yield run, process.stdin
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "stop"), [("Waits", signal.SIGINT), ("Blocks", signal.SIGTERM)])
def test_a_breakpoint_stops_a_handler_and_it_goes_on(onceonly: Terminal, kind: str, stop: signal.Signals) -> None:
    """One process, which reads the debugger's commands; neither a watchdog nor a time limit ends it. Ctrl-C does."""
    with debugging(onceonly, kind) as (run, commands):
        commands.write(SHOW)
        run.until("order is A-1")
        commands.write("c\n")
        run.until("handler succeeded")
        assert run.stop(stop) == 0
        said = run.said
    assert "stops.py" in said
    assert not any(words in said for words in ("process started", "event loop blocked", "message failed"))
    assert onceonly.rows("shop.db", "SELECT id FROM orders") == [("A-1",)]


@pytest.mark.parametrize("kind", ["Waits", "Blocks"])
@pytest.mark.parametrize("way", ["q", "end of input", "SIGTERM"])
def test_who_leaves_the_debugger_ends_the_process_and_no_attempt_is_counted(onceonly: Terminal, kind: str, way: str) -> None:
    """The message is released. Its policy allows no retry, so one that was counted would be a dead letter."""
    with debugging(onceonly, kind, PATIENT) as (run, commands):
        if way == "SIGTERM":
            run.process.send_signal(signal.SIGTERM)
            commands.write(WAKE)
        elif way == "q":
            commands.write("q\n")
        else:
            commands.close()
        run.until("worker stopped")
        assert run.process.wait(timeout=60) == 0
    said = run.said
    assert not any(words in said for words in ("message failed", "message given up", "Traceback", "retrying")), said
    with debugged(onceonly) as (run, commands):
        commands.write("c\n")
        run.until("handler succeeded")
        assert run.stop() == 0
    assert onceonly.rows("shop.db", "SELECT id FROM orders") == [("A-1",)]


def test_who_leaves_another_debugger_ends_the_process_too(onceonly: Terminal) -> None:
    """One that `breakpoint()` did not start."""
    with debugging(onceonly, "Waits", PATIENT.replace("breakpoint()", "__import__('pdb').set_trace()")) as (run, commands):
        commands.write("q\n")
        run.until("worker stopped")
        assert run.process.wait(timeout=60) == 0
    said = run.said
    assert not any(words in said for words in ("message failed", "message given up", "Traceback", "retrying")), said


def test_ctrl_c_at_the_prompt_cancels_the_command_and_stops_nothing(onceonly: Terminal) -> None:
    """As in any pdb. The worker does not hear of it afterwards either."""
    with debugging(onceonly, "Blocks") as (run, commands):
        for _ in range(2):
            run.process.send_signal(signal.SIGINT)
            commands.write(WAKE)
            run.until("--KeyboardInterrupt--")
            run.until_prompt(PROMPT)
        commands.write("c\n")
        run.until("handler succeeded")
        onceonly.write("orders.jsonl", [{"order_id": "A-2"}])
        assert onceonly("send", "orders.jsonl", "--to", "stops:shop", "--type", "Blocks", "--id-from", "order_id").code == 0
        commands.write("c\n")
        run.until("handler succeeded")
        assert run.stop(signal.SIGINT) == 0
    assert onceonly.rows("shop.db", "SELECT id FROM orders") == [("A-1",), ("A-2",)]


@pytest.mark.parametrize("other", [("--drain",), ("--reload",), ("--processes", "2"), ("--health", "127.0.0.1:0")])
def test_what_needs_a_supervisor_is_refused(onceonly: Terminal, other: tuple[str, ...]) -> None:
    """In one line, before anything runs."""
    done = onceonly("run", "shop:shop", "--debug", *other)
    assert done.code == 2
    assert "--debug runs in one process" in done.error
