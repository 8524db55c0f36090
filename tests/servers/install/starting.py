"""Starts a server, and waits until it answers with the login of the tests."""

import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.servers.install.daemons import LocalServer, Unstartable, identity, is_systemd, run
from tests.servers.install.packages import last_lines
from tests.servers.install.round_trips import Condition, examine

PATIENCE = 90.0
"""Seconds for a server to start, which takes 1 to 10. RabbitMQ takes longest."""
PAUSE = 0.05
"""Seconds between two attempts. A port cannot be waited for in another way."""

_OPEN_FILES = 65536

STARTED: list[subprocess.Popen[bytes]] = []
"""The servers' processes, which outlive this one."""

Write = Callable[[str], object]


def start(server: LocalServer, write: Write) -> bool:
    """Configure and start a server, wait until it answers, and write what was done. Returns whether it answers."""
    since = time.monotonic()
    try:
        check_unused(server)
        for changed in server.configure():
            write(f"{server.name}: wrote {changed}")
        process = launch(server)
        if wait_for(server, process) is Condition.REFUSING:
            admit(server)
    except (Unstartable, OSError, LookupError) as error:
        log = server.newest_log()
        write(
            f"!!! {server.name} does not start: {error}\n{last_lines(log) if log else f'No log is in /var/log/{server.logs}.'}"
        )
        return False
    write(f"{server.name}: started, answers at 127.0.0.1:{server.port} after {time.monotonic() - since:.1f} s")
    return True


def check_unused(server: LocalServer) -> None:
    """Check that no process uses the data of a server: it may listen on another port, or in another network.

    Raises Unstartable, because two servers would destroy the data of both.
    """
    if not server.data:
        return
    folder = Path(server.data).resolve()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if any(used.readlink().is_relative_to(folder) for used in (process / "cwd", *(process / "fd").iterdir())):
                name = (process / "comm").read_text(encoding="utf-8").strip()
                raise Unstartable(
                    f"process {process.name} ({name}) uses {server.data}, and nothing answers at 127.0.0.1:{server.port}."
                    f" Stop it, or set {server.variable} to the URL of another server"
                )


def launch(server: LocalServer) -> subprocess.Popen[bytes] | None:
    """Start a server; returns its process, or None if a command has started it. Raises Unstartable if the command fails."""
    if server.unit and is_systemd():
        run("systemctl", "start", server.unit)
        return None
    start = server.start()
    if not start.log:
        run(*start.command, user=start.user)
        return None
    path = Path("/var/log", start.log)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    if start.user:
        shutil.chown(path, start.user, start.user)
    _allow_files()
    with path.open("ab") as log:
        process = subprocess.Popen(
            start.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **identity(start.user),
        )
    STARTED.append(process)
    return process


def admit(server: LocalServer) -> None:
    """Add the login of the tests to a running server. Raises Unstartable if it still refuses it."""
    server.admit()
    left = examine(server.port, server.ask)
    if left.condition is not Condition.READY:
        raise Unstartable(f"it refuses the login of the tests: {left.words}")


def _allow_files() -> None:
    """Let servers open many files: their clients are files, too."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def wait_for(server: LocalServer, process: subprocess.Popen[bytes] | None, patience: float = PATIENCE) -> Condition:
    """Wait until a server that was started answers or refuses the login. Raises Unstartable if it does neither."""
    until = time.monotonic() + patience
    while (found := examine(server.port, server.ask)).condition not in {Condition.READY, Condition.REFUSING}:
        if process is not None and process.poll() is not None:
            raise Unstartable(f"its process has ended with {process.returncode}")
        if time.monotonic() > until:
            raise Unstartable(f"it does not answer at 127.0.0.1:{server.port} within {patience:g} s {found.words}".rstrip())
        time.sleep(PAUSE)
    return found.condition
