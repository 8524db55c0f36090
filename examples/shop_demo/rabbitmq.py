"""A RabbitMQ server of one's own, from the installed programs: to be filled, stopped, killed and started at will."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

SECONDS_TO_START = 60
PORTS = range(11_000, 22_000)
"""Those of servers that tests and examples start. Linux gives ports above 32,768 to clients, other systems above 49,152."""
_GIVEN: set[int] = set()
PROGRAMS = "ONCEONLY_RABBITMQ_PROGRAMS"
"""The variable that names another directory with the programs. They run as the user of this process."""
_BINARIES = "/usr/lib/rabbitmq/bin:/opt/homebrew/sbin:/usr/local/sbin"


class OwnRabbitMQ:
    """A node with its own name, ports, data and port mapper: it knows nothing of others on this machine."""

    def __init__(self, server: str, control: str, folder: Path) -> None:
        self._server, self._control, self._folder = server, control, folder
        self.port, self._mapper = free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self._node = f"onceonly{self.port}@localhost"
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{self.port}\n")
        (folder / "enabled_plugins").write_text("[].\n")
        self._environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def with_management(self) -> str:
        """Enable the management HTTP API, before the start. Returns its URL."""
        port = free_port()
        with (self._folder / "rabbitmq.conf").open("a") as settings:
            settings.write(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n")
        (self._folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        return f"http://127.0.0.1:{port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._server],
                env=self._environment,
                user=_user(),
                group=_user(),
                cwd=self._folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + SECONDS_TO_START
        while not _answers(self.port):
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError(f"this RabbitMQ of our own does not start: {(self._folder / 'output').read_text()}")
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it: SIGTERM lets it close, SIGKILL is a crash."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            self._process.wait()
            while _answers(self.port):  # the shell around it ends first
                time.sleep(0.05)
            self._process = None

    def control(self, *words: str) -> None:
        """Run rabbitmqctl."""
        command = [self._control, "--node", self._node, *words]
        subprocess.run(
            command, check=True, env=self._environment, user=_user(), group=_user(), cwd=self._folder, capture_output=True
        )

    def close(self) -> None:
        """Stop it for good, and the port mapper that came with it."""
        self.stop(signal.SIGKILL)
        mapper, end = shutil.which("epmd"), time.monotonic() + SECONDS_TO_START
        while mapper is not None and _answers(self._mapper) and time.monotonic() < end:
            # it refuses until it has noticed that the node is gone
            subprocess.run([mapper, "-port", str(self._mapper), "-kill"], check=False, capture_output=True)
            time.sleep(0.05)


def programs() -> tuple[str, str] | None:
    """Find `rabbitmq-server` and `rabbitmqctl`; gives None where they are not installed."""
    path = os.environ.get(PROGRAMS, _BINARIES)
    server, control = (shutil.which(name, path=path) for name in ("rabbitmq-server", "rabbitmqctl"))
    return None if server is None or control is None else (server, control)


@contextmanager
def own_rabbitmq(server: str, control: str) -> Iterator[OwnRabbitMQ]:
    """Make a server that is not started yet, and remove it at the end."""
    with TemporaryDirectory(prefix="onceonly-rabbitmq-", ignore_cleanup_errors=True) as name:
        if user := _user():
            shutil.chown(name, user, user)
        own = OwnRabbitMQ(server, control, Path(name))
        try:
            yield own
        finally:
            own.close()


def free_port(*further: int) -> int:
    """Find an unused port; gives none of them twice. The ports that are `further` above it are free as well.

    They are below those that systems give to clients: nothing else takes one before its server listens, or while it is
    started again.
    """
    while True:
        port = SystemRandom().choice(PORTS)
        if port not in _GIVEN and all(map(_is_free, (port, *(port + each for each in further)))):
            _GIVEN.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: connections that ended do not matter
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _user() -> str | None:
    return "rabbitmq" if os.geteuid() == 0 and PROGRAMS not in os.environ else None  # as its own scripts do
