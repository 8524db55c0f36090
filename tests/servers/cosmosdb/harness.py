"""Runs the stand-in as a process of its own, and is what tests control it with."""

import http.client
import json
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import ROOT
from tests.servers.available import free_port
from tests.servers.certificates import make_certificates
from tests.servers.emulators import Running, speaks_http
from tests.servers.proxy import Secured

KEY = "a2V5"
DATABASE = "shop"


class CosmosStandIn:
    """A running stand-in. `url` is that of its account; each container is of one test."""

    def __init__(self, port: int, secured: Secured) -> None:
        self.url = f"cosmos://:{KEY}@127.0.0.1:{port}"
        self.secured = secured
        self._port = port

    def place(self, container: str, options: str = "") -> str:
        """Return the URL of a container."""
        return f"{self.url}/{DATABASE}/{container}{options}"

    def create(self, container: str, paths: tuple[str, ...], **more: Any) -> None:
        """Create a container as an application has it, with items that stay."""
        kind = "Hash" if len(paths) == 1 else "MultiHash"
        definition = {"id": container, "partitionKey": {"paths": paths, "kind": kind, "version": 2}, "defaultTtl": -1, **more}
        self._ask("create", database=DATABASE, container=definition)

    def items(self, container: str) -> list[dict[str, Any]]:
        """Return everything that is in a container."""
        found: list[dict[str, Any]] = self._ask("items", database=DATABASE, container=container)
        return found

    def put(self, container: str, partition: str | list[str], item: dict[str, Any]) -> None:
        """Write an item as another program does."""
        self._ask("put", database=DATABASE, container=container, partition=partition, item=item)

    def fault(
        self, kind: str, action: str, *, when: str = "before", skip: int = 0, headers: dict[str, str] | None = None
    ) -> None:
        """Do something to a request that comes; see `standin.Fault`."""
        self._ask("fault", kind=kind, action=action, when=when, skip=skip, headers=headers or {})

    def held(self) -> None:
        """Wait until a request is held."""
        self._ask("held")

    def release(self) -> None:
        """Let requests go on that are held, and do nothing to others."""
        self._ask("release")

    def throttle(self, count: int, milliseconds: int) -> None:
        """Refuse this many requests, each with a time to wait."""
        self._ask("throttle", count=count, milliseconds=milliseconds)

    def pass_time(self, seconds: float) -> None:
        """Let the time of the service pass."""
        self._ask("pass", seconds=seconds)

    def log(self) -> tuple[list[str], int]:
        """Return the kinds of requests since the last look, and how many came before the time that they had to wait."""
        found = self._ask("log")
        return found["log"], found["early"]

    def _ask(self, what: str, **given: Any) -> Any:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=60, context=ssl._create_unverified_context())  # noqa: S323 - loopback
        try:
            connection.request("POST", f"/_test/{what}", json.dumps(given), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = json.loads(answer.read())
        finally:
            connection.close()
        assert answer.status == http.client.OK, content
        return content


@contextmanager
def run_standin(consistency: str = "Strong") -> Iterator[CosmosStandIn]:
    """Run it."""
    port = free_port()
    with TemporaryDirectory(prefix="onceonly-cosmos-", ignore_cleanup_errors=True) as name:
        made = make_certificates(Path(name) / "certificates")
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(made.server, made.server_key)
        program = [sys.executable, "-m", "tests.servers.cosmosdb.standin", str(port)]
        process = Running(
            [*program, str(made.server), str(made.server_key), consistency], Path(name), {"PYTHONPATH": str(ROOT)}
        )
        try:
            process.start(lambda: speaks_http(port, secure=True))
            yield CosmosStandIn(port, Secured(serving, ssl._create_unverified_context()))  # noqa: S323 - loopback
        finally:
            process.stop()
