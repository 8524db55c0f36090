"""A worker on RabbitMQ sends to a queue and an exchange of another program, and a person corrects what was missing."""

import asyncio
import json
import os
import signal

import pytest

from onceonly.assembly import open_transport
from onceonly.model.destination import Destination
from onceonly.ports.transport import Topology
from onceonly_conformance.destination_suite import Arrival
from tests.cli.terminal import Terminal, running
from tests.conformance.destination_subjects import KEY, RabbitMQDestinations
from tests.servers.available import MEASURED

KILLS, PORTION = 8, 12
WORKS = """
from dataclasses import dataclass
from pathlib import Path
from onceonly import Context, Endpoint, Exchange, Queue, Retry, WorkerSettings

@dataclass
class Go:
    number: int

@dataclass
class Bill:
    number: int

@dataclass
class Gone:
    number: int

works = Endpoint(
    "works",
    store="sqlite:///w.db",
    transport={url!r},
    retry=Retry(immediate={immediate}, delayed=0),
    events={{"Gone": Exchange({exchange!r}, {key!r})}},
    worker=WorkerSettings(batch_size=2),
)

@works.handler
async def go(message: Go, context: Context) -> None:
    with Path("log").open("a") as file:
        file.write(f"worked {{message.number}}\\n")
    context.send(Bill(message.number), to=Queue({queue!r}))
    context.publish(Gone(message.number))
"""


@pytest.mark.slow
def test_a_missing_destination_is_a_dead_letter_that_only_sends(onceonly: Terminal) -> None:
    """The handler runs once. When the destinations exist, a retry sends both messages."""
    subject = RabbitMQDestinations()
    url = f"{subject.url}&prefix={subject.names.prefix}"
    text = WORKS.format(url=url, queue=subject.queue, exchange=subject.exchange, key=KEY, immediate=0)
    (onceonly.folder / "works.py").write_text(text)
    onceonly.write("go.jsonl", [{"number": 1}])
    try:
        onceonly("send", "go.jsonl", "--to", "works:works", "--type", "Go", "--id-from", "number")
        onceonly("run", "works:works", "--drain")
        (letter,) = onceonly("dead", "list", "works:works", "--json").answer
        assert letter["finish_only"]
        assert f"Bill to queue:{subject.queue}" in letter["reason"]
        queue, exchange = asyncio.run(subject.create())
        said = retried_until_none(onceonly)
        for destination in (queue, exchange):
            arrived = asyncio.run(subject.arrived(destination, 5))
            assert len(arrived) == 1, said
            ((headers, body),) = arrived
            assert (dict(headers)["ce-source"], body) == ("works", b'{"number":1}')
        assert (onceonly.folder / "log").read_text() == "worked 1\n"
    finally:
        asyncio.run(remove(subject, url))


@pytest.mark.slow
@pytest.mark.timeout(400)  # the supervisor waits longer before each replacement
def test_killed_workers_lose_nothing_and_send_one_id_for_each_message(onceonly: Terminal) -> None:
    """Copies on the wire have equal ids and bodies, by which other programs recognize them."""
    subject = RabbitMQDestinations()
    url = f"{subject.url}&prefix={subject.names.prefix}"
    retries = KILLS  # a kill while a handler runs counts against its message
    text = WORKS.format(url=url, queue=subject.queue, exchange=subject.exchange, key=KEY, immediate=retries)
    (onceonly.folder / "works.py").write_text(text)
    arrived: dict[Destination, list[Arrival]] = {each: [] for each in asyncio.run(subject.create())}
    try:
        onceonly("topology", "create", "works:works")
        with running(onceonly, "works:works", "--log-format", "json") as run:
            for kill in range(KILLS):
                pid = json.loads(run.until("process replaced" if kill else "process started"))["pid"]
                onceonly.write("go.jsonl", [{"number": kill * PORTION + number} for number in range(PORTION)])
                onceonly("send", "go.jsonl", "--to", "works:works", "--type", "Go", "--id-from", "number")
                for destination, found in arrived.items():
                    found.extend(asyncio.run(subject.arrived(destination, 60)))
                os.kill(pid, signal.SIGKILL)
            run.stop()
        onceonly("run", "works:works", "--drain")
        messages = KILLS * PORTION
        assert onceonly("dead", "list", "works:works", "--json").answer == []
        for destination, found in arrived.items():
            found.extend(asyncio.run(subject.arrived(destination, 0)))
            contents = {(dict(headers)["ce-source"], dict(headers)["ce-id"], body) for headers, body in found}
            assert sorted(json.loads(body)["number"] for _, _, body in contents) == [*range(messages)]
            MEASURED.append(f"{destination}: {len(found) - messages} of {messages} messages repeated after {KILLS} kills")
    finally:
        asyncio.run(remove(subject, url))


def retried_until_none(onceonly: Terminal) -> list[str]:
    """Retry dead letters, and drain, until there are none: on a slow machine the same message may fail once more.

    Returns what was said, which shows where a message went that does not arrive.
    """
    said: list[str] = []
    while letters := onceonly("dead", "list", "works:works", "--json").answer:
        said.append(letters[0]["reason"])
        said.append(onceonly("dead", "retry", "works:works", "--all").out)
        while (ended := onceonly("run", "works:works", "--drain")).code:  # not drained: it says why
            said.append(ended.err)
    return said


async def remove(subject: RabbitMQDestinations, url: str) -> None:
    """Delete what the commands and the subject declared."""
    async with open_transport(url, "works") as transport:
        await transport.remove([Topology(endpoint="works")])  # type: ignore[attr-defined]
    await subject._remove(subject._declared.queues | subject._declared.exchanges)
