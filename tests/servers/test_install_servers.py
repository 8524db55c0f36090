"""What `make servers` decides: which servers it starts, and what it says where it cannot."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

from tests import ROOT
from tests.servers import available
from tests.servers.available import SERVERS, Server, free_port, missing_lines
from tests.servers.install import __main__ as program
from tests.servers.install import daemons, packages, starting
from tests.servers.install.__main__ import COMPOSE, Host, provide
from tests.servers.install.daemons import (
    LOCAL_SERVERS,
    MARIADB,
    NATS,
    POSTGRESQL,
    REDIS,
    LocalServer,
    Start,
    extend,
    write,
)
from tests.servers.install.starting import STARTED, launch, wait_for
from tests.servers.own_root import OWN_ROOT, Mirror, own_root
from tests.servers.speaker import speaker

DEBIAN = Host(has_apt=True, is_root=True)


@pytest.fixture
def lines() -> list[str]:
    """What was written."""
    return []


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Install nothing, wait for no other installation on this machine, and end what was started."""
    monkeypatch.setattr(packages, "LOG", tmp_path / "log")
    monkeypatch.setattr(program, "LOG", tmp_path / "log")
    monkeypatch.setattr(program, "install", never)
    yield
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


def never(*_arguments: object) -> NoReturn:
    """Stand for a step that must not be taken."""
    raise AssertionError("a step was taken that must not be")


def like_redis(port: int, start: Callable[[], Start] = never, **changes: object) -> LocalServer:
    """Return a server that speaks as Redis does."""
    return REDIS._replace(port=port, program="sh", unit="", data="", start=start, **changes)


def a_server(folder: Path, answer: str = "+PONG", *, port: int) -> Start:
    """Return how to start a small server that answers this, or what a file `answer` says."""
    script = (
        "import pathlib, socket\n"
        f"listener, file = socket.create_server(('127.0.0.1', {port})), pathlib.Path({str(folder / 'answer')!r})\n"
        "while True:\n"
        "    connection, _ = listener.accept()\n"
        "    connection.recv(99)\n"
        f"    text = file.read_text() if file.exists() else {answer!r}\n"
        "    connection.sendall(text.encode() + b'\\r\\n')\n"
        "    connection.close()\n"
    )
    return Start([sys.executable, "-c", script], log=str(folder / "log of the server"))


def test_the_servers_are_those_of_the_tests() -> None:
    """By name, variable, and port of the default URL."""
    assert [(it.name, it.variable, it.port) for it in LOCAL_SERVERS] == [
        (it.name, it.variable, urlsplit(it.default).port) for it in SERVERS
    ]


def test_a_second_call_changes_nothing(lines: list[str]) -> None:
    """Every server answers: nothing is configured, installed or started, and that is said."""
    with speaker(b"", b"+PONG\r\n") as port:
        assert provide([like_redis(port, configure=never)], DEBIAN, {}, lines.append)
    assert lines == [f"Redis: answers at 127.0.0.1:{port}", "Nothing was changed: no server is missing."]


def test_a_server_elsewhere_is_left_alone(lines: list[str]) -> None:
    """A variable names it, and its port here is not even asked. Its URL, which may have a password, is not written."""
    named = {"ONCEONLY_REDIS": "redis://:secret@elsewhere"}
    assert provide([like_redis(free_port())], DEBIAN, named, lines.append)
    assert lines[0] == "Redis: ONCEONLY_REDIS names it, so none is started here"
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (Host(has_apt=False, is_root=True), "because there is no apt-get."),
        (Host(has_apt=True, is_root=False), "because this is not root."),
        (Host(has_apt=False, is_root=False), "because there is no apt-get and this is not root."),
    ],
)
def test_where_nothing_can_be_installed_it_says_what_to_do(lines: list[str], host: Host, reason: str) -> None:
    """The packages, the file for Docker, and the variables; of what is missing only."""
    with speaker(b"", b"+PONG\r\n") as port:
        absent = [NATS._replace(port=free_port(), start=never), MARIADB._replace(port=free_port(), start=never)]
        assert not provide([like_redis(port), *absent], host, {}, lines.append)
    assert lines[0] == f"Redis: answers at 127.0.0.1:{port}"
    (advice,) = lines[1:]
    assert advice.startswith(
        f"!!! Missing: NATS (port {absent[0].port}), MariaDB (port {absent[1].port}). They cannot be installed here, {reason}"
    )
    for part in (
        "nats-server mariadb-server\n",
        f"docker compose --file {COMPOSE} up --detach --wait nats mariadb\n",
        "ONCEONLY_NATS, ONCEONLY_MARIADB",
    ):
        assert part in advice
    assert "redis" not in advice


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n",
            "is taken by something that does not answer as Redis: its answer to PING is 'HTTP/1.1 400",
        ),
        (b"-NOAUTH Authentication required.\r\n", "refuses the login of the tests: NOAUTH Authentication required."),
        (b"-LOADING Redis is loading\r\n", "is starting: LOADING Redis is loading. Run `make servers` again"),
    ],
    ids=["foreign", "refusing", "starting"],
)
def test_a_port_that_is_taken_is_an_error(lines: list[str], answer: bytes, problem: str) -> None:
    """And no other server is started, because the command cannot do what it was asked for."""
    with speaker(b"", answer) as port:
        assert not provide([like_redis(port), NATS._replace(port=free_port(), start=never)], DEBIAN, {}, lines.append)
    (line,) = lines
    assert line.startswith("!!! ")
    assert f"127.0.0.1:{port} {problem}" in line
    assert line.endswith("or set ONCEONLY_REDIS to the URL of another one")


def test_an_absent_server_is_started_and_answers(lines: list[str], tmp_path: Path) -> None:
    """Its settings are written first. It is installed already, so apt-get is not called."""
    port = free_port()
    server = like_redis(port, lambda: a_server(tmp_path, port=port), configure=lambda: [tmp_path / "settings"])
    assert provide([server], DEBIAN, {}, lines.append)
    assert lines[0] == f"Redis: wrote {tmp_path / 'settings'}"
    assert lines[1].startswith(f"Redis: started, answers at 127.0.0.1:{port} after ")
    assert lines[2].startswith("These servers are for tests, not for production")


def test_the_login_is_added_to_a_server_that_refuses_it(lines: list[str], tmp_path: Path) -> None:
    """As PostgreSQL and MariaDB do after their installation."""
    port = free_port()
    let_in = (tmp_path / "answer").write_text
    server = like_redis(port, lambda: a_server(tmp_path, "-NOAUTH", port=port), admit=lambda: let_in("+PONG"), configure=list)
    assert provide([server], DEBIAN, {}, lines.append)


def test_a_login_that_is_still_refused_is_an_error(lines: list[str], tmp_path: Path) -> None:
    """With the words of the server."""
    port = free_port()
    no_more = (tmp_path / "answer").write_text

    def admit() -> None:
        no_more("-NOAUTH still")

    server = like_redis(port, lambda: a_server(tmp_path, "-NOAUTH", port=port), admit=admit, configure=list)
    assert not provide([server], DEBIAN, {}, lines.append)
    assert "!!! Redis does not start: it refuses the login of the tests: NOAUTH still" in lines[0]


def test_a_server_that_ends_at_once_is_an_error_with_its_log(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is noticed at once, and the last lines of its log give the reason."""
    log = tmp_path / "server.log"
    monkeypatch.setattr(LocalServer, "newest_log", lambda _: log)
    failing = Start([sys.executable, "-c", "print('the disk is full'); raise SystemExit(3)"], log=str(log))
    assert not provide([like_redis(free_port(), lambda: failing)], DEBIAN, {}, lines.append)
    assert lines == [f"!!! Redis does not start: its process has ended with 3\nthe end of {log}:\nthe disk is full"]


def test_a_command_that_fails_is_an_error_with_its_words(lines: list[str]) -> None:
    """Such as `pg_ctlcluster`, which ends once its server runs."""
    failing = Start([sys.executable, "-c", "raise SystemExit('no such cluster')"])
    assert not provide([like_redis(free_port(), lambda: failing)], DEBIAN, {}, lines.append)
    assert "failed with 1: no such cluster" in lines[0]


def test_systemd_starts_the_unit_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL has no unit here: `pg_ctlcluster` starts the one of its cluster."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(starting, "is_systemd", lambda: True)
    monkeypatch.setattr(starting, "run", lambda *command, **_: asked.append(command))
    assert launch(REDIS._replace(start=never)) is None
    assert launch(POSTGRESQL._replace(start=lambda: Start(["pg_ctlcluster", "15", "main", "start"]))) is None
    assert asked == [("systemctl", "start", "redis-server"), ("pg_ctlcluster", "15", "main", "start")]


@pytest.mark.parametrize("by", ["directory", "file"])
def test_a_server_whose_data_another_process_uses_is_not_started(lines: list[str], tmp_path: Path, by: str) -> None:
    """It may listen on another port or in another network, and two servers would destroy the data of both."""
    data = tmp_path / "data"
    data.mkdir()
    server = like_redis(free_port(), configure=never)._replace(data=str(data))
    wait = "import sys; print('ready', flush=True); sys.stdin.read()"
    command, where = ([sys.executable, "-c", wait], data)
    if by == "file":
        command, where = ([sys.executable, "-c", f"file = open({str(data / 'dump')!r}, 'w'); {wait}"], tmp_path)
    with subprocess.Popen(command, cwd=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert not provide([server], DEBIAN, {}, lines.append)
        other.communicate()
    assert f"process {other.pid} (" in lines[0]
    assert f") uses {data}, and nothing answers at 127.0.0.1:{server.port}" in lines[0]


def test_a_cluster_that_runs_is_not_changed(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may listen on its socket only, or in another network. Its settings are not written."""
    listed = "15 old 5433 down postgres /d /l\n15 main 5432 online postgres /d /l\n"
    monkeypatch.setattr(daemons, "run", lambda *_: listed)
    monkeypatch.setattr(daemons, "write", never)
    monkeypatch.setattr(LocalServer, "is_installed", lambda _: True)
    assert not provide([POSTGRESQL._replace(port=free_port())], DEBIAN, {}, lines.append)
    assert lines[0].startswith("!!! PostgreSQL does not start: its cluster 15 main runs, and nothing answers at 127.0.0.1:5432")


def test_a_server_that_never_answers_is_an_error() -> None:
    """After a time limit."""
    with pytest.raises(Exception, match=r"it does not answer at 127\.0\.0\.1:\d+ within 0 s"):
        wait_for(like_redis(free_port()), None, patience=0)


def test_packages_that_cannot_be_installed_are_an_error(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started; all missing packages were asked for at once."""
    asked: list[str] = []

    def install(names: list[str], _log: object) -> bool:
        asked.extend(names)
        packages.LOG.write_text("E: Unable to locate package\n")
        return False

    monkeypatch.setattr(program, "install", install)
    missing = [server._replace(port=free_port(), program="no-such-program", start=never) for server in (REDIS, NATS)]
    assert not provide(missing, DEBIAN, {}, lines.append)
    assert asked == ["redis-server", "nats-server"]
    assert lines[-1].startswith("!!! apt-get cannot install redis-server nats-server")
    assert lines[-1].endswith("E: Unable to locate package")


def test_what_another_call_has_started_meanwhile_is_not_started_again(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call waits for the first, and looks again."""
    port = free_port()

    @contextmanager
    def waiting() -> Iterator[None]:
        with speaker(b"", b"+PONG\r\n", port):
            yield

    monkeypatch.setattr(program, "installing", waiting)
    assert provide([like_redis(port)], DEBIAN, {}, lines.append)
    assert lines == []


def test_settings_are_written_once(tmp_path: Path) -> None:
    """What is in a file stays; lines before all others come first, because the first rule of pg_hba.conf decides."""
    rules = tmp_path / "pg_hba.conf"
    rules.write_text("local all all peer\n")
    assert extend(rules, "host all root trust\n", unless="host all root", first=True) == [rules]
    assert extend(rules, "host all root trust\n", unless="host all root", first=True) == []
    assert [line for line in rules.read_text().splitlines() if line and line[0] != "#"] == [
        "host all root trust",
        "local all all peer",
    ]
    assert extend(rules, "host all other trust\n", unless="host all other") == [rules]
    assert rules.read_text().endswith("host all other trust\n")
    settings = tmp_path / "conf.d" / "ours"
    assert [write(settings, text) for text in ("a", "a", "b")] == [[settings], [], [settings]]


def test_the_command_needs_no_installed_package() -> None:
    """`-S` leaves out all of the environment: there is no .venv when `make servers` runs for the first time."""
    named = {server.variable: "elsewhere" for server in LOCAL_SERVERS}
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tests.servers.install"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **named},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(LOCAL_SERVERS) + 1


def test_containers_have_the_ports_of_the_servers() -> None:
    """On the loopback interface only. The names are those in the advice."""
    services = yaml.safe_load((ROOT / COMPOSE).read_text())["services"]
    ports = {name: service["ports"] for name, service in services.items()}
    assert ports == {server.name.lower(): [f"127.0.0.1:{server.port}:{server.port}"] for server in LOCAL_SERVERS}


def test_the_compose_file_has_the_schema_of_compose(tmp_path: Path) -> None:
    """The schema comes with the checker, and finds a wrong name of a field."""
    check = ["--builtin-schema", "vendor.compose-spec"]
    done = CliRunner().invoke(check_jsonschema.main, [*check, str(ROOT / COMPOSE)])
    assert done.exit_code == 0, done.output
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / COMPOSE).read_text().replace("healthcheck:", "healthchecks:"))
    done = CliRunner().invoke(check_jsonschema.main, [*check, str(wrong)])
    assert done.exit_code == 1
    assert "healthchecks" in done.output


@pytest.mark.parametrize(("ci", "how"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["here", "CI"])
def test_a_root_of_its_own_needs_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, how: type[BaseException]
) -> None:
    """A loud skip, and with CI set a failure. Nothing is made."""
    monkeypatch.setattr(available, "MISSING", missing := set[Server]())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("ONCEONLY_QUICK", raising=False)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(how, match="only root can make namespaces"), own_root(tmp_path, Mirror("", "bookworm")):
        pass
    assert missing == {OWN_ROOT}
    assert list(tmp_path.iterdir()) == []


def test_the_last_lines_name_make_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the servers that it starts, not for programs, and not for a server whose URL is set."""
    monkeypatch.setattr(available.os, "environ", {"ONCEONLY_NATS": "nats://elsewhere"})
    other = Server("Chromium", "ONCEONLY_CHROMIUM", "chromium")
    assert missing_lines({available.REDIS, available.MARIADB, available.NATS, other}) == [
        "!!! NOT TESTED: Chromium is not installed, see ONCEONLY_CHROMIUM",
        "!!! NOT TESTED: MariaDB does not answer, see ONCEONLY_MARIADB",
        "!!! NOT TESTED: NATS does not answer, see ONCEONLY_NATS",
        "!!! NOT TESTED: Redis does not answer, see ONCEONLY_REDIS",
        "!!! `make servers` installs and starts MariaDB, Redis (Debian or Ubuntu, as root)",
    ]
    assert missing_lines({other})[1:] == []
