"""A node of Apache Kafka: its settings and commands, with scripts in its place, and itself where KAFKA_HOME names one."""

import signal
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.servers import available, kafka_node
from tests.servers.kafka_node import APACHE_KAFKA, configuration, kafka_home
from tests.servers.kafka_node import kafka_node as running_node

# What stands for Kafka's scripts: they record their arguments, and the second one listens at the broker's address in its file.
RECORDS = 'echo "$(basename "$0") $*" >>"$(dirname "$0")/../calls"\n'
LISTENS = f"""exec {sys.executable} - "$1" <<'END'
import re, socket, sys
text = open(sys.argv[1]).read()
port = int(re.search("PLAINTEXT://127.0.0.1:([0-9]+)", text).group(1))
server = socket.create_server(("127.0.0.1", port))
while True:
    server.accept()[0].close()
END
"""
FAILS = "echo 'no valid cluster id'; exit 1\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a release whose scripts record how they are called."""
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    write_script(tmp_path, "kafka-storage.sh", RECORDS)
    write_script(tmp_path, "kafka-server-start.sh", RECORDS + LISTENS)
    return tmp_path


def write_script(home: Path, name: str, text: str) -> None:
    """Write a script of the release."""
    script = home / "bin" / name
    script.write_text(f"#!/bin/sh\n{text}")
    script.chmod(0o755)


def test_a_node_is_formatted_and_started(home: Path) -> None:
    """With one file of settings, which is gone at the end like the node."""
    with running_node() as node:
        assert node.answers()
        assert node.url == f"kafka://127.0.0.1:{node.port}"
        formatted, started = (home / "calls").read_text().splitlines()
        name, verb, cluster, option, settings = formatted.split()
        assert (name, verb, option) == ("kafka-storage.sh", "format", "--config")
        assert len(cluster.removeprefix("--cluster-id=")) == 22
        assert started == f"kafka-server-start.sh {settings}"
        text = Path(settings).read_text()
        assert f"listeners=PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:" in text
        assert f"log.dirs={Path(settings).parent}/data\n" in text
    assert not node.answers()
    assert not Path(settings).exists()


def test_a_node_keeps_its_folder_when_it_is_killed(home: Path) -> None:
    """It is formatted once."""
    with running_node() as node:
        node.process.stop(signal.SIGKILL)
        assert not node.answers()
        node.process.start(node.answers)
        assert node.answers()
    calls = [line.split()[0] for line in (home / "calls").read_text().splitlines()]
    assert calls == ["kafka-storage.sh", "kafka-server-start.sh", "kafka-server-start.sh"]


@pytest.mark.parametrize(
    ("script", "words"), [("kafka-storage.sh", "does not format"), ("kafka-server-start.sh", "does not start")]
)
def test_what_fails_is_told(home: Path, script: str, words: str) -> None:
    """With what it said."""
    write_script(home, script, FAILS)
    with pytest.raises(RuntimeError, match=rf"{words}[^:]*: no valid cluster id"), running_node():
        pass


def test_everything_is_on_loopback_and_stored_once(tmp_path: Path) -> None:
    """A node that is alone cannot have copies elsewhere, and would wait for them."""
    settings = configuration(tmp_path, 9092, 9093)
    assert settings["process.roles"] == "broker,controller"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:9093"
    addresses = settings["listeners"].split(",") + settings["advertised.listeners"].split(",")
    assert {each.split("://")[1].split(":")[0] for each in addresses} == {"127.0.0.1"}
    assert {value for name, value in settings.items() if name.endswith((".replication.factor", ".min.isr"))} == {"1"}


def test_its_absence_is_a_loud_skip_and_never_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with CI=true."""
    monkeypatch.setattr(kafka_node, "MISSING", missing := set[available.Server]())
    monkeypatch.setenv("CI", "true")
    for named in ("", str(tmp_path)):
        monkeypatch.setenv("KAFKA_HOME", named)
        with pytest.raises(pytest.skip.Exception, match=r"KAFKA_HOME names no unpacked release of Apache Kafka"):
            kafka_home()
    assert missing == {APACHE_KAFKA}


@pytest.mark.slow
@pytest.mark.repeated
def test_apache_kafka_starts() -> None:
    """A client finds the one broker."""
    with running_node() as node:
        found = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}"}).list_topics(timeout=30)
        assert [each.id for each in found.brokers.values()] == [1]
