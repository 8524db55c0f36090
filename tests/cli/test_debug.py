"""`onceonly run --debug`: `breakpoint()` in a handler has the terminal, and any time."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.terminal import PROGRAM, Running, Terminal


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "stop"), [("Waits", signal.SIGINT), ("Blocks", signal.SIGTERM)])
def test_a_breakpoint_stops_a_handler_and_it_goes_on(onceonly: Terminal, kind: str, stop: signal.Signals) -> None:
    """One process, which reads the debugger's commands; neither a watchdog nor a time limit ends it. Ctrl-C does."""
    shutil.copy(Path(__file__).with_name("debug_program.py"), onceonly.folder / "stops.py")
    onceonly.write("orders.jsonl", [{"order_id": "A-1"}])
    assert onceonly("send", "orders.jsonl", "--to", "stops:shop", "--type", kind, "--id-from", "order_id").code == 0
    command = [*PROGRAM, "run", "stops:shop", "--debug", "--log-level", "debug"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=onceonly.folder, text=True, bufsize=1, **pipes) as process:
        try:
            run = Running(process)
            assert process.stdin is not None
            process.stdin.write("p 'order is ' + order.order_id\n")
            run.until("order is A-1")
            process.stdin.write("c\n")
            run.until("handler succeeded")
            run.stop(stop)
            said = "".join(run.said)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "stops.py" in said
    assert not any(words in said for words in ("process started", "event loop blocked", "message failed"))
    assert onceonly.rows("shop.db", "SELECT id FROM orders") == [("A-1",)]


@pytest.mark.parametrize("other", [("--drain",), ("--reload",), ("--processes", "2"), ("--health", "127.0.0.1:0")])
def test_what_needs_a_supervisor_is_refused(onceonly: Terminal, other: tuple[str, ...]) -> None:
    """In one line, before anything runs."""
    done = onceonly("run", "shop:shop", "--debug", *other)
    assert done.code == 2
    assert "--debug runs in one process" in done.error
