"""`onceonly run` as a process: what a service manager sees of it."""

import gc
import json
import os
import signal
import sys

import pytest

from onceonly.cli.supervision import log_event
from onceonly.runtime.processes.child import THRESHOLDS
from onceonly.runtime.processes.processes import ChildEvent, ChildEventKind
from tests.cli.terminal import Terminal, running
from tests.log_events import events

ORDERS = [{"order_id": f"A-{number}", "total": number} for number in range(20)]
SEND = ("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_gracefully(onceonly: Terminal, number: signal.Signals) -> None:
    """Exit code 0, every process stopped, no traceback."""
    with running(onceonly, "shop:shop", "shop:mailer", "-p", "2") as run:
        run.until("worker started", times=4)
        assert run.stop(number) == 0
        said = run.said
        assert said.count("process stopped") == 2
        assert "Traceback" not in said


def test_messages_are_handled_by_processes_of_which_one_is_killed(onceonly: Terminal) -> None:
    """A killed process is replaced, and the work goes on: each order has one row."""
    onceonly.write("orders.jsonl", ORDERS)
    with running(onceonly, "shop:shop", "--log-format", "json") as run:
        started = json.loads(run.until("process started"))
        run.until("worker started")
        os.kill(started["pid"], signal.SIGKILL)
        assert json.loads(run.until("process died"))["exitcode"] == -signal.SIGKILL
        run.until("process replaced")
        onceonly(*SEND)
        onceonly(*SEND)
        with onceonly.start("run", "shop:shop", "--drain") as drain:
            said, _ = drain.communicate(timeout=60)
        assert drain.returncode == 0, said
        assert run.stop() == 0
    assert onceonly.rows("shop.db", "SELECT count(*), count(DISTINCT id) FROM orders") == [(20, 20)]


@pytest.mark.parametrize(("options", "is_frozen"), [((), True), (("--no-freeze",), False)])
def test_a_worker_process_collects_garbage_as_the_option_says(
    onceonly: Terminal, options: tuple[str, ...], *, is_frozen: bool
) -> None:
    """A handler reads the settings of its process. It has imported neither Typer nor Rich."""
    program = onceonly.folder / "shop.py"
    reads = (
        "import gc, sys; "
        'raise ValueError(f\'{gc.get_freeze_count() > 0} {gc.get_threshold()} {sys.modules.keys() & {"typer", "rich"}}\')'
    )
    program.write_text(program.read_text().replace('raise Reject("a total below zero")', reads))
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": -1}])
    assert onceonly(*SEND).code == 0
    with running(onceonly, "shop:shop", "--log-format", "json", *options) as run:
        reason = json.loads(run.until("message failed"))["reason"]
        assert run.stop() == 0
    assert reason.endswith(f"True {THRESHOLDS} set()" if is_frozen else f"False {gc.get_threshold()} set()")


@pytest.mark.slow
def test_it_starts_again_when_its_program_changes(onceonly: Terminal) -> None:
    """The new code runs, the old process stopped gracefully."""
    program = onceonly.folder / "shop.py"
    with running(onceonly, "shop:shop", "--reload") as run:
        run.until("worker started")
        program.write_text(program.read_text().replace("a total below zero", "what a total"))
        assert "shop.py" in run.until("program reloading")
        run.until("process stopped")
        run.until("worker started")
        onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": -1}])
        onceonly(*SEND)
        run.until("what a total")
        assert run.stop() == 0


@pytest.mark.slow
def test_a_program_with_a_fault_is_named_once_and_waited_for(onceonly: Terminal) -> None:
    """It is not started again and again; the next change of a file is another try."""
    program = onceonly.folder / "shop.py"
    right = program.read_text()
    with running(onceonly, "shop:shop", "--reload") as run:
        run.until("worker started")
        program.write_text("1 / 0\n")
        run.until("program cannot start, waiting for a file change")
        program.write_text(right)
        run.until("program reloading")
        run.until("worker started")
        assert run.stop() == 0
    said = run.said
    assert said.count("error: module 'shop' could not be imported: ZeroDivisionError") == 1
    assert "process replaced" not in said


def test_modules_named_like_those_of_the_standard_library_stop_no_process(onceonly: Terminal) -> None:
    """The folder of the program is searched first, but only from then on when the program is imported."""
    (onceonly.folder / "bin").mkdir()
    command = onceonly.folder / "bin" / "onceonly"  # as installed: Python searches its folder, not the current one
    command.write_text("from onceonly.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    for name in ("queue", "email", "socket", "csv"):
        (onceonly.folder / f"{name}.py").write_text("orders = []\n")
    with running(onceonly, "shop:shop", program=(sys.executable, str(command))) as run:
        run.until("worker started")
        assert run.stop() == 0
    assert "process died" not in run.said


def test_a_program_that_cannot_be_imported_any_more_ends_it(onceonly: Terminal) -> None:
    """Exit code 2, after the other process has stopped: another start would not help."""
    with running(onceonly, "shop:shop", "-p", "2", "--log-format", "json") as run:
        started = json.loads(run.until("process started"))
        run.until("worker started", times=2)
        (onceonly.folder / "shop.py").write_text("1 / 0\n")
        os.kill(started["pid"], signal.SIGKILL)
        run.until("error: module 'shop' could not be imported: ZeroDivisionError")
        run.until("process ended: set-up is wrong")
        run.until("process stopped")
        said = run.end()
    assert said == ""
    assert run.process.returncode == 2
    assert run.said.count("process replaced") == 1


def test_a_breakpoint_fails_its_message_with_what_it_needs(onceonly: Terminal) -> None:
    """A process that is supervised has no terminal."""
    program = onceonly.folder / "shop.py"
    program.write_text(program.read_text().replace('raise Reject("a total below zero")', "breakpoint()"))
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": -1}])
    assert onceonly(*SEND).code == 0
    with running(onceonly, "shop:shop", "--log-format", "json") as run:
        failed = json.loads(run.until("message failed"))
        assert run.stop() == 0
    assert failed["reason"] == "BdbQuit: breakpoint() needs `onceonly run --debug`"


@pytest.mark.slow
def test_a_signal_that_is_sent_twice_at_once_stops_it_gracefully(onceonly: Terminal) -> None:
    """`timeout` signals the process and then its group: nobody is in a hurry."""
    with running(onceonly, "shop:shop", "-p", "2") as run:
        run.until("worker started", times=2)
        run.process.send_signal(signal.SIGTERM)
        assert run.stop() == 0
    said = run.said
    assert said.count("process stopped") == 2
    assert "killed" not in said


def test_what_is_told_of_a_killed_process_is_why(caplog: pytest.LogCaptureFixture) -> None:
    """One outstayed the grace time, the other was killed for somebody in a hurry."""
    for kind in (ChildEventKind.KILLED, ChildEventKind.HURRIED):
        log_event(ChildEvent(kind=kind, index=0, pid=1))
    assert events(caplog.records) == [
        "process killed: did not stop in time",
        "process killed: second signal",
    ]


@pytest.mark.parametrize(("database", "role", "options"), [("shop.db", "store", ()), ("queue.db", "transport", ("--drain",))])
def test_a_database_that_cannot_be_opened_is_named(
    onceonly: Terminal, database: str, role: str, options: tuple[str, ...]
) -> None:
    """Whose it is and where, with exit code 2: a person has to do something."""
    (onceonly.folder / database).write_text("this is not a database, " * 100)
    with running(onceonly, "shop:shop", *options) as run:
        said = run.end()
    assert run.process.returncode == 2
    assert said.splitlines() == [
        f"error: endpoint 'shop' cannot use its {role} sqlite:///{database}: DatabaseError: file is not a database"
    ]


def test_a_set_up_error_ends_it_before_any_process_is_started(onceonly: Terminal) -> None:
    """Exit code 2, one line."""
    with running(onceonly, "shop:nothing", "-p", "3") as run:
        said = run.end()
    assert run.process.returncode == 2
    assert said.splitlines() == ["error: 'shop:nothing' does not exist in module 'shop': it has shop:mailer, shop:shop"]
