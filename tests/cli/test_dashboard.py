"""`onceonly dashboard`: what it refuses, the lines of users, and a page that is served."""

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceonly.model.errors import SetupError
from onceonly.systems.urls import Address
from onceonly_dashboard.command import listen
from tests.servers.available import free_port

pytestmark = pytest.mark.slow

PROGRAM = """
from onceonly import Endpoint

shop = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///shop.db")

@shop.handler(type="PlaceOrder")
async def place(order: dict) -> None: ...
"""


@pytest.fixture(name="folder")
def folder_with_an_endpoint(tmp_path: Path) -> Path:
    """Write a program."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    return tmp_path


def onceonly(folder: Path, *arguments: str, text: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends."""
    command = [sys.executable, "-m", "onceonly", "dashboard", *arguments]
    environment = {**os.environ, **settings}
    return subprocess.run(
        command, cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("address", ["0.0.0.0:8090", "[::]:8090", "ops.example.com:80"])
def test_it_does_not_listen_to_other_machines_without_a_login(folder: Path, address: str) -> None:
    """The address decides, before anything listens."""
    done = onceonly(folder, "shop:shop", "--listen", address)
    assert done.returncode == 2
    assert "reachable from other machines" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "no endpoint is named"),
        (("shop:shop", "--listen", "nowhere"), "--listen"),
        (("shop:shop", "--users", "missing"), "cannot read missing"),
        (("shop:shop", "--role", "ana"), "write NAME:ROLE"),
        (("shop:shop", "--role", "ana:admin"), "'admin' is not a role"),
        (("shop:shop", "shop:shop"), "two endpoints are named shop"),
        (("shop:shop", "--users", "a", "--bearer", "b"), "exclude each other"),
        (("shop:shop", "--trusted-proxy", "*"), "Write an IP address or a network"),
        (("shop:shop", "--trusted-proxy", "10.0.0.1/8"), "has host bits set"),
        (("shop:shop", "--trusted-proxy", "::/0"), "this trusts every client"),
    ],
)
def test_wrong_options_are_refused(folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    """With exit code 2."""
    done = onceonly(folder, *arguments)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_a_new_user_is_a_line_with_a_hash(folder: Path) -> None:
    """The password is read from standard input, and not repeated. A short one is refused."""
    done = onceonly(folder, "--new-user", "ana", text="correct horse battery\n")
    assert done.stdout.startswith("ana:scrypt$")
    assert "correct" not in done.stdout + done.stderr
    assert onceonly(folder, "--new-user", "ana", text="short\n").returncode == 2
    assert onceonly(folder, "--new-user", "a b", text="correct horse battery\n").returncode == 2


class Served:
    """The command, while it serves."""

    def __init__(self, folder: Path, *arguments: str, **settings: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "onceonly", "dashboard", "shop:shop", "--listen", self.url.removeprefix("http://")]
        self.process = subprocess.Popen(
            [*command, *arguments], cwd=folder, env={**os.environ, **settings}, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Ask for a page as JSON."""
        request = urllib.request.Request(self.url + path, headers={"accept": "application/json", **headers})  # noqa: S310 - it is http
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - the same
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def started() -> Iterator[list[Served]]:
    """End what a test has started."""
    processes: list[Served] = []
    yield processes
    for each in processes:
        each.process.kill()
        each.process.communicate()


def test_it_serves_an_endpoint_that_never_ran_and_creates_nothing(folder: Path, started: list[Served]) -> None:
    """The state says what is missing. Ctrl-C ends it."""
    served = Served(folder)
    started.append(served)
    assert served.url in served.first_line
    status, body = served.get("/")
    (shop,) = json.loads(body)["endpoints"]
    assert (status, shop["name"]) == (200, "shop")
    assert not (folder / "shop.db").exists()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(30) in (0, -signal.SIGINT, 130)


def test_users_of_the_environment_log_in(folder: Path, started: list[Served]) -> None:
    """And nobody else."""
    line = onceonly(folder, "--new-user", "ana", text="correct horse battery\n").stdout
    served = Served(folder, ONCEONLY_DASHBOARD_USERS=line)
    started.append(served)
    assert served.get("/")[0] == 401
    right = base64.b64encode(b"ana:correct horse battery").decode()
    assert served.get("/", authorization=f"Basic {right}")[0] == 200


def test_options_of_actions_reach_the_pages(folder: Path, started: list[Served]) -> None:
    """Without --send-as-new there is no such page. Here there is one, which asks for a selection."""
    plain, permitted = Served(folder), Served(folder, "--send-as-new", "--audit-views")
    started.extend([plain, permitted])
    assert plain.get("/act/new?endpoint=shop")[0] == 404
    assert permitted.get("/act/new?endpoint=shop")[0] == 400


async def test_an_address_in_use_is_refused(folder: Path) -> None:
    """With the reason."""
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        done = await asyncio.to_thread(onceonly, folder, "shop:shop", "--listen", str(port))
    assert (done.returncode, "cannot listen" in done.stderr) == (2, True)


def test_a_socket_that_cannot_listen_is_closed() -> None:
    """Before the reason is raised, not when it is collected."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SetupError) as refused:
        listen(Address("127.0.0.1", taken.getsockname()[1]))
    cause = refused.value.__cause__
    assert cause is not None
    assert pytest.ExceptionInfo.from_exception(cause).traceback[-1].locals["sock"].fileno() == -1


@pytest.mark.parametrize(
    ("options", "status"), [((), 429), (("--trusted-proxy", "10.0.0.0/8"), 429), (("--trusted-proxy", "127.0.0.1"), 401)]
)
def test_a_client_chooses_its_address_only_through_a_trusted_proxy(
    folder: Path, started: list[Served], options: tuple[str, ...], status: int
) -> None:
    """Otherwise each guess of a password would be the first one of a client."""
    (folder / "users").write_text(onceonly(folder, "--new-user", "ana", text="correct horse battery\n").stdout)
    served = Served(folder, "--users", "users", *options)
    started.append(served)
    wrong = "Basic " + base64.b64encode(b"ana:wrong").decode()
    answers = [served.get("/", authorization=wrong, **{"x-forwarded-for": f"192.0.2.{number}"})[0] for number in range(6)]
    assert answers == [401] * 5 + [status]
