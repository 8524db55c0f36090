"""A node of Apache Kafka itself, from an unpacked release that KAFKA_HOME names: one process that is broker and controller.

Only Java's own registry has Kafka, so nothing here installs it, and its absence is no failure with CI=true either: a machine
that installs from PyPI, npm and Debian cannot have it. It is skipped, and the last lines of the session say so.
"""

import os
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import uuid4

import pytest

from tests.servers.available import MISSING, Server, free_port, want
from tests.servers.emulators import Running, listens

APACHE_KAFKA = Server("Apache Kafka", "KAFKA_HOME", "")
_FORMAT, _START = "bin/kafka-storage.sh", "bin/kafka-server-start.sh"
_FORMAT_SECONDS = 120


class KafkaNode(NamedTuple):
    """A node that runs. `process` may be killed, and started again with `answers`: what is stored stays."""

    url: str
    port: int
    process: Running

    def answers(self) -> bool:
        """Tell whether it accepts connections."""
        return listens(self.port)


def kafka_home() -> Path:
    """Return the folder of the unpacked release; skips the test where there is none, loudly, and never fails it."""
    want(APACHE_KAFKA.name)
    home = Path(os.environ.get(APACHE_KAFKA.variable) or "/nonexistent")
    if lacking := [name for name in (_FORMAT, _START) if not (home / name).is_file()]:
        MISSING.add(APACHE_KAFKA)
        pytest.skip(f"{APACHE_KAFKA.variable} names no unpacked release of Apache Kafka: there is no {lacking[0]} in {home}")
    return home


def configuration(folder: Path, port: int, controller_port: int) -> dict[str, str]:
    """Return the settings of a node that listens on loopback only, and keeps one copy of everything in a folder."""
    broker, controller = f"PLAINTEXT://127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{broker},{controller}",
        "advertised.listeners": broker,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def write_configuration(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings as a file of properties."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


@contextmanager
def kafka_node() -> Iterator[KafkaNode]:
    """Format and start a node in a folder of its own, removed at the end. Raises RuntimeError with its output if it fails."""
    home = kafka_home()
    port, controller_port = free_port(), free_port()
    with TemporaryDirectory(prefix="onceonly-kafka-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = folder / "server.properties"
        write_configuration(settings, configuration(folder, port, controller_port))
        environment = {"LOG_DIR": str(folder / "logs"), "KAFKA_HEAP_OPTS": "-Xms256m -Xmx512m"}
        if java := os.environ.get("JAVA_HOME"):
            environment["JAVA_HOME"] = java
        _format(home, settings, environment)
        process = Running([str(home / _START), str(settings)], folder, environment)
        node = KafkaNode(f"kafka://127.0.0.1:{port}", port, process)
        try:
            process.start(node.answers)
            yield node
        finally:
            process.stop()


def _format(home: Path, settings: Path, environment: Mapping[str, str]) -> None:
    cluster = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
    command = [str(home / _FORMAT), "format", f"--cluster-id={cluster}", "--config", str(settings)]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_FORMAT_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} does not format the node: {done.stdout}")
