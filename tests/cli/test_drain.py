"""What `--drain` says while it waits, and what is left when it ends."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from onceonly import Endpoint
from onceonly.assembly import open_transport, temporary_transport
from onceonly.cli.drain import DrainedQueue, HeldElsewhereNotice, drain, waiting_messages
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import LIVE
from onceonly.runtime.processes.counters import Column, CounterRow, SharedCounters
from tests.cli.terminal import Terminal
from tests.servers.available import RABBITMQ, need
from tests.servers.redis import own_redis

pytestmark = pytest.mark.slow

LATER = """
from datetime import timedelta
from onceonly import Context, Endpoint

works = Endpoint("works", store="sqlite:///w.db", transport="sqlite:///q.db")


@works.handler(type="Work")
async def work(message: dict, context: Context) -> None:
    if "hours" in message:
        context.send({"id": message["id"]}, type="Work", to="works", delay=timedelta(hours=message["hours"]))
"""


def test_what_only_others_hold_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """However often one looks."""
    elsewhere = HeldElsewhereNotice(patience=0)
    for _ in range(3):
        elsewhere.look(Depth(waiting=0, held=200, delayed=0), 0)
    assert capsys.readouterr().err == "waiting for 200 messages held by another process\n"


def test_nothing_is_said_while_there_is_work_here_or_no_reason_to_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """Waiting, held by itself, unknown, empty."""
    elsewhere = HeldElsewhereNotice(patience=0)
    elsewhere.look(Depth(waiting=1, held=1, delayed=0), 0)
    elsewhere.look(Depth(waiting=0, held=1, delayed=0), 1)
    elsewhere.look(None, 0)
    elsewhere.look(Depth(waiting=0, held=0, delayed=3), 0)
    assert capsys.readouterr().err == ""


def test_a_short_wait_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """Work that came in between begins the time anew."""
    elsewhere = HeldElsewhereNotice(patience=60)
    elsewhere.look(Depth(waiting=0, held=1, delayed=0), 0)
    elsewhere.look(Depth(waiting=0, held=1, delayed=0), 0)
    assert capsys.readouterr().err == ""


def test_messages_that_are_not_due_are_told_by_the_exit_code(onceonly: Terminal) -> None:
    """The queue is not empty: 1, the answer is no; and 0 when nothing is left."""
    (onceonly.folder / "works.py").write_text(LATER)
    send = ("send", "work.jsonl", "--to", "works:works", "--type", "Work", "--id-from", "id")
    onceonly.write("work.jsonl", [{"id": "a"}])
    assert onceonly(*send).code == 0
    assert onceonly("run", "works:works", "--drain").code == 0
    onceonly.write("work.jsonl", [{"id": "b", "hours": 3}])
    onceonly(*send)
    for _ in range(2):
        done = onceonly("run", "works:works", "--drain")
        assert (done.code, done.out) == (1, "")
        assert done.error == ("error: not drained: 1 not yet due (retries and delayed messages): drain again when they are due")


class Receiver:
    """A worker that settles whatever it receives."""

    def __init__(self, url: str, row: CounterRow) -> None:
        self._url, self._row = url, row

    async def run(self, stop: asyncio.Event) -> None:
        """Receive until the stop."""
        async with open_transport(self._url, "mine") as transport:
            while not stop.is_set():
                taken = await transport.receive(10, 0.05)
                self._row.add(Column.RECEIVED, len(taken))
                await transport.ack(taken)


class LateRelay:
    """A relay that finds, just when it is stopped, the record of a process that died, and sends its message."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def run(self, stop: asyncio.Event) -> None:
        """Send one message at the end."""
        await stop.wait()
        async with open_transport(self._url, "mine") as transport:
            message = Message(id="late", source="mine", type="Work", body=b"{}")
            assert await transport.send([Send(message=message, to="mine")]) == (Answer.TAKEN,)


async def test_what_a_relay_sends_last_is_still_handled(tmp_path: Path) -> None:
    """Nobody would receive it otherwise, and the exit code would say that nothing is left."""
    url = f"sqlite:///{tmp_path}/q.db"
    settings = Endpoint("mine", store="sqlite:///unused.db", transport=url).settings
    queues, stop = [DrainedQueue(settings, ())], asyncio.Event()
    async with temporary_transport(url, [Topology(endpoint="mine")]), open_transport(url, "mine") as transport:
        await transport.declare([Topology(endpoint="mine")])
        with SharedCounters.create(tmp_path / "board", 1) as counters:
            row = counters.row(0)
            delayed = await drain(queues, workers=[Receiver(url, row)], relays=[LateRelay(url)], stop=stop, row=row)
            assert (delayed, row.get(Column.RECEIVED)) == (0, 1)
        assert await waiting_messages(queues, patience=0) == 0
        await LateRelay(url).run(stop)
        assert await waiting_messages(queues, patience=0) == 1


def test_a_stop_before_the_end_is_told_by_the_exit_code(onceonly: Terminal) -> None:
    """Whatever the signal cut off is left."""
    (onceonly.folder / "works.py").write_text(STOPS)
    onceonly.write("work.jsonl", [{"id": "a"}, {"id": "b"}])
    assert onceonly("send", "work.jsonl", "--to", "works:works", "--type", "Work", "--id-from", "id").code == 0
    done = onceonly("run", "works:works", "--drain")
    assert (done.code, "1 message waiting" in done.error) == (1, True), done.err


STOPS = """
import os, signal
from onceonly import Endpoint, WorkerSettings

works = Endpoint("works", store="sqlite:///w.db", transport="sqlite:///q.db", worker=WorkerSettings(batch_size=1))


@works.handler(type="Work")
async def work(message: dict) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
"""

TWO = """
from onceonly import Endpoint

mine = Endpoint("mine", store="sqlite:///mine.db", transport="{url}")
other = Endpoint("other", store="sqlite:///other.db", transport="{url}")


@mine.handler(type="Work")
async def work(message: dict) -> None:
    pass


@other.handler(type="Else")
async def work_elsewhere(message: dict) -> None:
    pass
"""


@pytest.fixture(name="shared_broker")
def url_of_a_shared_broker() -> Iterator[str]:
    """Use one prefix on RabbitMQ for two endpoints; delete what is behind it at the end."""
    url = f"{need(RABBITMQ)}?prefix=d{uuid4().hex[:8]}."
    yield url

    async def remove() -> None:
        topologies = [Topology(endpoint=name, events=("Work", "Else")) for name in ("mine", "other")]
        async with temporary_transport(url, topologies):
            pass

    asyncio.run(remove())


@pytest.mark.parametrize("sent", ["command", "event"])
def test_only_delayed_messages_of_the_endpoint_count(onceonly: Terminal, shared_broker: str, sent: str) -> None:
    """`--drain` ignores a command or an event for another endpoint of the same virtual host, and ends with 0."""

    async def send(to: str, kind: str) -> None:
        message = Message(id="a", source="till", type=kind, body=b"{}")
        delayed = Send(message=message, to=to if sent == "command" else "", due=LIVE.clock.now() + 3_600_000)
        async with open_transport(shared_broker, "till") as transport:
            assert await transport.send([delayed]) == (Answer.TAKEN,)

    (onceonly.folder / "two.py").write_text(TWO.replace("{url}", shared_broker))
    assert onceonly("topology", "create", "two:mine", "two:other").code == 0
    asyncio.run(send("other", "Else"))
    done = onceonly("run", "two:mine", "--drain")
    assert done.code == 0, done.err
    asyncio.run(send("mine", "Work"))
    done = onceonly("run", "two:mine", "--drain")
    assert (done.code, "1 not yet due" in done.error) == (1, True)
    assert [each["delayed"] for each in onceonly("status", "two:mine", "--json").answer] == [1]


@pytest.mark.parametrize(("options", "lines"), [((), 0), (("--log-level", "debug"), 1), (("--log-level", "error"), 0)])
def test_a_run_of_a_handler_is_logged_at_the_level_debug(onceonly: Terminal, options: tuple[str, ...], lines: int) -> None:
    """One line for each, and none of the drivers, which log each statement."""
    (onceonly.folder / "works.py").write_text(LATER)
    onceonly.write("work.jsonl", [{"id": "a"}])
    onceonly("send", "work.jsonl", "--to", "works:works", "--type", "Work", "--id-from", "id")
    done = onceonly("run", "works:works", "--drain", *options)
    runs = [line for line in done.err.splitlines() if "debug " in line]
    assert (done.code, len(runs)) == (0, lines)
    assert all("handler succeeded endpoint=works type=Work" in line for line in runs)
    assert ("worker started" in done.err) == ("error" not in options)


def test_messages_come_from_a_pipe_by_its_path(onceonly: Terminal) -> None:
    """As from a shell's `<(...)`."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b'{"order_id": "A-1", "total": 30}\n')
        os.close(writing)
        done = onceonly("send", f"/dev/fd/{reading}", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")
    finally:
        os.close(reading)
    assert (done.code, done.out) == (0, "1 sent to shop\n")


def test_a_folder_is_no_file_to_read(onceonly: Terminal) -> None:
    """Said in words."""
    done = onceonly("send", str(onceonly.folder), "--to", "shop:shop")
    assert (done.code, "is a directory" in done.error) == (2, True)


@pytest.mark.slow
def test_what_a_place_warns_of_is_said_once_for_all_processes(onceonly: Terminal) -> None:
    """By the one that looks at it before it starts the others."""
    with own_redis() as redis:
        (onceonly.folder / "works.py").write_text(LATER.replace("sqlite:///w.db", redis))
        started = onceonly.start("run", "works:works", "-p", "2")
        said: list[str] = []
        assert started.stdout is not None
        for line in started.stdout:
            said.append(line)
            if sum("worker started" in each for each in said) == 2:
                break
        started.terminate()
        rest, _ = started.communicate(timeout=60)
    warned = [line for line in [*said, *rest.splitlines()] if "warning" in line]
    assert len(warned) == 1, warned
