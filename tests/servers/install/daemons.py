"""The five servers as Debian and Ubuntu package them: their settings for tests, how each starts, and the logins of the tests.

With systemd running, their units are started. Elsewhere, as in a container, their programs are started directly.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from tests.servers.install.round_trips import RoundTrip, ask_mariadb, ask_nats, ask_postgresql, ask_rabbitmq, ask_redis

MOST_CONNECTIONS = 200
"""Of PostgreSQL, whose default of 100 is too few for four processes of tests."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOTE = "Written by `make servers` of onceonly: for tests, not for production."


class Unstartable(Exception):
    """A server cannot be started; the text is the reason."""


class Start(NamedTuple):
    """How a server starts without systemd."""

    command: Sequence[str]
    user: str = ""
    """Empty for the user of this process."""
    log: str = ""
    """The file in /var/log for what it prints. Without one, the command ends once the server runs."""


class LocalServer(NamedTuple):
    """A server of the tests on this machine."""

    name: str
    variable: str
    """The environment variable that names a server elsewhere."""
    port: int
    ask: RoundTrip
    package: str
    program: str
    unit: str
    """Of systemd. Without one, the command of `start` starts the unit."""
    logs: str
    """A pattern of its log files."""
    data: str
    """The folder of its data. Empty for PostgreSQL, which may have several clusters there."""
    configure: Callable[[], list[Path]]
    """Write its settings where they are not yet, and return the files that were changed."""
    start: Callable[[], Start]
    """Return how to start it directly."""
    admit: Callable[[], None] = lambda: None
    """Add the login of the tests to the running server."""

    def is_installed(self) -> bool:
        """Return whether its program is on this machine."""
        return bool(shutil.which(self.program, path=_PATH)) or any(Path("/usr/lib/postgresql").glob(f"*/bin/{self.program}"))

    def newest_log(self) -> Path | None:
        """Return the log that was written last."""
        logs = [log for log in Path("/var/log").glob(self.logs) if log.is_file() and log.stat().st_size]
        return max(logs, key=lambda log: log.stat().st_mtime, default=None)


class Identity(TypedDict):
    """The arguments of `subprocess` for a program that runs as another user."""

    user: str | None
    group: str | None
    extra_groups: list[str] | None
    env: dict[str, str]
    cwd: str


def identity(user: str) -> Identity:
    """Return how to run a program as a user; its environment is not the one of `make`."""
    environment = {"PATH": _PATH, "LANG": "C.UTF-8"}
    if not user:
        return Identity(user=None, group=None, extra_groups=None, env=environment, cwd="/")
    environment |= {"HOME": str(Path(f"~{user}").expanduser()), "USER": user, "LOGNAME": user}
    return Identity(user=user, group=user, extra_groups=[], env=environment, cwd="/")


def run(*command: str, user: str = "", told: str = "") -> str:
    """Run a program to its end, and return what it printed. Raises Unstartable with its errors."""
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, **identity(user))
    if done.returncode:
        problem = (done.stderr or done.stdout).strip()
        raise Unstartable(f"`{' '.join(command)}` failed with {done.returncode}: {problem}")
    return done.stdout


def write(path: Path, content: str) -> list[Path]:
    """Write a file of settings; returns it if it was another one before."""
    if path.exists() and path.read_text(encoding="utf-8") == content:
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return [path]


def extend(path: Path, lines: str, *, unless: str, first: bool = False) -> list[Path]:
    """Add lines at the end of a file, or before all others; returns it. A file with a line that begins with `unless` stays."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if any(line.strip().startswith(unless) for line in before.splitlines()):
        return []
    added = f"# {_NOTE}\n{lines}"
    path.write_text(f"{added}\n{before}" if first else f"{before.rstrip()}\n\n{added}".lstrip(), encoding="utf-8")
    return [path]


def folder_for(user: str, name: str) -> None:
    """Make a folder of a server where it is missing: `/run` is empty after a restart."""
    if not Path(name).is_dir():
        Path(name).mkdir(parents=True)
        shutil.chown(name, user, user)


def _cluster() -> tuple[str, str]:
    """Return version and name of the cluster of PostgreSQL that has the port; it is made where there is none."""
    listed = [line.split() for line in run("pg_lsclusters", "--no-header").splitlines()]
    for version, name, port, status, *_ in listed:
        if port == str(POSTGRESQL.port):
            if status.startswith("online"):
                raise Unstartable(
                    f"its cluster {version} {name} runs, and nothing answers at 127.0.0.1:{port}: see its settings"
                )
            return version, name
    versions = sorted(int(found.name) for found in Path("/usr/lib/postgresql").glob("[0-9]*") if found.name.isdigit())
    newest, name = str(versions[-1]), "onceonly" if listed else "main"
    run("pg_createcluster", newest, name, "--port", str(POSTGRESQL.port), "--locale", "C.UTF-8", "--encoding", "UTF8")
    return newest, name


def _configure_postgresql() -> list[Path]:
    folder = Path("/etc/postgresql").joinpath(*_cluster())
    settings = f"# {_NOTE}\nlisten_addresses = '127.0.0.1'\nmax_connections = {MOST_CONNECTIONS}\n"
    trust = "host all root 127.0.0.1/32 trust"
    return [
        *write(folder / "conf.d" / "onceonly-tests.conf", settings),
        *extend(folder / "pg_hba.conf", f"{trust}\n", unless=trust, first=True),
    ]


def _start_postgresql() -> Start:
    return Start(["pg_ctlcluster", *_cluster(), "start"])


def _admit_to_postgresql() -> None:
    psql = (
        "psql",
        "--no-psqlrc",
        "--quiet",
        "--set",
        "ON_ERROR_STOP=1",
        "--port",
        str(POSTGRESQL.port),
        "--dbname",
        "postgres",
    )
    run(*psql, user="postgres", told="CREATE ROLE root SUPERUSER LOGIN;\n")


def _configure_mariadb() -> list[Path]:
    # Without skip-name-resolve, 127.0.0.1 would be root@localhost, who logs in by the socket.
    settings = f"# {_NOTE}\n[mysqld]\nbind-address = 127.0.0.1\nport = {MARIADB.port}\nskip-name-resolve\n"
    return write(Path("/etc/mysql/mariadb.conf.d/99-onceonly-tests.cnf"), settings)


def _start_mariadb() -> Start:
    folder_for("mysql", "/run/mysqld")
    return Start(["mariadbd"], "mysql", log="mysql/error.log")


def _admit_to_mariadb() -> None:
    statements = (
        "CREATE DATABASE IF NOT EXISTS test;"
        "CREATE USER IF NOT EXISTS root@127.0.0.1 IDENTIFIED VIA mysql_native_password USING '';"
        "GRANT ALL PRIVILEGES ON *.* TO root@127.0.0.1 WITH GRANT OPTION;"
    )
    run(
        "mariadb",
        "--no-defaults",
        "--protocol=socket",
        "--socket=/run/mysqld/mysqld.sock",
        "--user=root",
        told=statements,
    )


def _start_redis() -> Start:
    folder_for("redis", "/run/redis")
    options = ("--daemonize", "no", "--supervised", "no", "--bind", "127.0.0.1", "--port", str(REDIS.port))
    return Start(["redis-server", "/etc/redis/redis.conf", *options], "redis", log="redis/redis-server.log")


def _configure_rabbitmq() -> list[Path]:
    local = (
        "NODENAME=rabbit@localhost\n"
        "export ERL_EPMD_ADDRESS=127.0.0.1\n"
        'export ERL_FLAGS="-kernel inet_dist_use_interface {127,0,0,1}"\n'
    )
    changed = [
        *extend(Path("/etc/rabbitmq/rabbitmq-env.conf"), local, unless="NODENAME="),
        *extend(
            Path("/etc/rabbitmq/rabbitmq.conf"), f"listeners.tcp.local = 127.0.0.1:{RABBITMQ.port}\n", unless="listeners.tcp"
        ),
    ]
    if is_systemd():  # its socket would listen for Erlang's port mapper on all addresses
        socket = f"# {_NOTE}\n[Socket]\nListenStream=\nListenStream=127.0.0.1:4369\n"
        changed += write(Path("/etc/systemd/system/epmd.socket.d/onceonly-tests.conf"), socket)
        run("systemctl", "daemon-reload")
    return changed


def _configure_nats() -> list[Path]:
    folder_for("nats", "/var/lib/nats-server")
    return extend(Path("/etc/nats-server.conf"), 'jetstream { store_dir: "/var/lib/nats-server" }\n', unless="jetstream")


def is_systemd() -> bool:
    """Return whether systemd starts the services of this machine."""
    return Path("/run/systemd/system").is_dir()


POSTGRESQL = LocalServer(
    name="PostgreSQL",
    variable="ONCEONLY_POSTGRESQL",
    port=5432,
    ask=ask_postgresql,
    package="postgresql",
    program="initdb",
    unit="",
    logs="postgresql/*.log",
    data="",
    configure=_configure_postgresql,
    start=_start_postgresql,
    admit=_admit_to_postgresql,
)
MARIADB = LocalServer(
    name="MariaDB",
    variable="ONCEONLY_MARIADB",
    port=3306,
    ask=ask_mariadb,
    package="mariadb-server",
    program="mariadbd",
    unit="mariadb",
    logs="mysql/error.log",
    data="/var/lib/mysql",
    configure=_configure_mariadb,
    start=_start_mariadb,
    admit=_admit_to_mariadb,
)
RABBITMQ = LocalServer(
    name="RabbitMQ",
    variable="ONCEONLY_RABBITMQ",
    port=5672,
    ask=ask_rabbitmq,
    package="rabbitmq-server",
    program="rabbitmq-server",
    unit="rabbitmq-server",
    logs="rabbitmq/*",
    data="/var/lib/rabbitmq",
    configure=_configure_rabbitmq,
    start=lambda: Start(["rabbitmq-server"], "rabbitmq", log="rabbitmq/start.log"),
)
REDIS = LocalServer(
    name="Redis",
    variable="ONCEONLY_REDIS",
    port=6379,
    ask=ask_redis,
    package="redis-server",
    program="redis-server",
    unit="redis-server",
    logs="redis/*.log",
    data="/var/lib/redis",
    configure=list,
    start=_start_redis,
)
NATS = LocalServer(
    name="NATS",
    variable="ONCEONLY_NATS",
    port=4222,
    ask=ask_nats,
    package="nats-server",
    program="nats-server",
    unit="nats-server",
    logs="nats-server*",
    data="/var/lib/nats-server",
    configure=_configure_nats,
    start=lambda: Start(["nats-server", "-c", "/etc/nats-server.conf"], "nats", log="nats-server.log"),
)
LOCAL_SERVERS = (POSTGRESQL, MARIADB, RABBITMQ, REDIS, NATS)
