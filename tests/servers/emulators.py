"""Emulators of cloud services, started by the tests themselves: own ports, own folders, ended by their process id.

`make .venv/emulators` installs them beside the environment of the tests; ONCEONLY_EMULATORS names another folder that holds
`emulators-python` and `emulators-node`. A missing one is a loud skip, and with CI=true a failure. What they listen on is
loopback only.
"""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests import ROOT
from tests.servers.available import Server, free_port, gone, want

VARIABLE = "ONCEONLY_EMULATORS"
SECONDS_TO_START, SECONDS_TO_STOP = 60.0, 10.0
_BETWEEN = 0.05  # seconds between two looks at a process that does not answer yet


class Emulator(NamedTuple):
    """A program that behaves like a service: the service's name, and where `make .venv/emulators` puts the program.

    The place may have wildcards. The tests may run with another Python than the emulators.
    """

    name: str
    program: str

    @property
    def server(self) -> Server:
        """Return the name under which it counts as missing."""
        return Server(self.name, VARIABLE, "")


MINISTACK = Emulator("ministack (DynamoDB, S3, SQS)", "emulators-python/bin/ministack")
NX = Emulator("nx-27017 (MongoDB)", "emulators-python/bin/nx-27017")
SECANTUS = Emulator("secantusdb (MongoDB with transactions)", "emulators-python/bin/secantusd-py")
AZURITE = Emulator("azurite (Azure storage)", "emulators-node/node_modules/.bin/azurite")
COSMOS = Emulator("cosmosdb-server (Cosmos DB)", "emulators-node/node_modules/.bin/cosmosdb-server")


def program_of(emulator: Emulator) -> str:
    """Find an emulator's program; skips the test, or fails it with CI=true, where it is not installed."""
    want(emulator.name)
    named = os.environ.get(VARIABLE)
    folders = [Path(named)] if named else [Path(sys.prefix), ROOT / ".venv"]
    for folder in folders:
        for place in sorted(folder.glob(emulator.program)):
            if found := shutil.which(str(place)):
                return found
    raise gone(emulator.server, f"{emulator.name} is not installed: run `make .venv/emulators`, or set {VARIABLE}")


class Running:
    """An emulator that runs until it is stopped; it may be killed and started again on the same ports."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._command, self._folder = list(command), folder
        self._environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, answers: Callable[[], bool], seconds: float = SECONDS_TO_START) -> None:
        """Start it, and wait until it answers. Raises RuntimeError, with what it said, when it does not."""
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that what it starts can be ended with it
            )
        end = time.monotonic() + seconds
        while not answers():
            if self._ended() or time.monotonic() > end:
                self.stop(signal.SIGKILL)
                raise RuntimeError(f"{self._command[0]} does not start: {(self._folder / 'output').read_text()[-4000:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it: SIGTERM lets it close, SIGKILL is a crash. One that does not listen to SIGTERM is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        for each in (number, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, each)
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_STOP)

    def _ended(self) -> bool:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_BETWEEN)
            return True
        return False


@contextmanager
def running(
    emulator: Emulator,
    arguments: Callable[[Path], Sequence[str]] = lambda _: (),
    *,
    answers: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Run an emulator in a folder of its own, removed at the end.

    `arguments` makes its command line from that folder; `answers` tells when it is there.
    """
    program = program_of(emulator)
    with TemporaryDirectory(prefix="onceonly-emulator-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        emulated = Running([program, *arguments(folder)], folder, environment or {})
        try:
            emulated.start(answers)
            yield emulated
        finally:
            emulated.stop()


def listens(port: int) -> bool:
    """Tell whether something listens on this port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def speaks_http(port: int, path: str = "/", *, secure: bool = False) -> bool:
    """Tell whether something answers HTTP there, whatever it answers; an emulator's own certificate is taken as it is."""
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=ssl._create_unverified_context())  # noqa: S323 - loopback
        if secure
        else http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def ministack() -> Iterator[str]:
    """Run AWS's services; gives the endpoint they all share."""
    port = free_port()
    environment = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "LOG_LEVEL": "WARNING"}
    with running(MINISTACK, answers=lambda: speaks_http(port, "/_ministack/health"), environment=environment):
        yield f"http://127.0.0.1:{port}"
