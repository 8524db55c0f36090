"""The command line with hostile content: it answers, it escapes, and it never ends with a traceback."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.adversary.harness import SHOP, Place, RabbitQueue, cloud_event, opened_place
from tests.adversary.raw_amqp import cloud_event as raw_event
from tests.adversary.raw_amqp import field, properties, text
from tests.servers.available import RABBITMQ, need

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

HOSTILE = "\x1b[2J\x1b]0;title\x07\x7f\x9b1m\u200e\u200f\u202a\u202e\u2066\u2069\r\nreason: forged"
FORBIDDEN = {*HOSTILE} - {*"[2J]0;title1m\nreason: forged"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(postgresql_url: str) -> AsyncIterator[Place]:
    """Leave dead letters with hostile ids, types, headers and bodies."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        queue = place.queue
        assert isinstance(queue, RabbitQueue)
        worker = place.start()
        await worker.ready()
        header = field(b"x-" + b"h", b"S", text(HOSTILE.encode()))
        for number, kind in enumerate([HOSTILE.encode(), b"Typed", b"Nobody"]):
            raw = properties(headers=raw_event(b"%d " % number + HOSTILE.encode(), type_=kind, more=(header,)))
            await queue.raw.publish(queue.name, HOSTILE.encode() + b"\xff", raw)
        await queue.raw.publish(queue.name, b"no identity", properties(content_type=HOSTILE.encode()))

        async def dead() -> bool:
            return len(await place.dead()) == 4

        await place.until(dead, "four dead letters")
        worker.stop()
        yield place


def run(place: Place, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run a command; what it prints must be harmless, and no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "onceonly", *words],
        cwd=place.folder,
        env={**place.environment, "PYTHONIOENCODING": "utf-8"},
        input=stdin,
        capture_output=True,
        check=False,
        timeout=120,
    )
    printed = (done.stdout + done.stderr).decode()
    assert "Traceback" not in done.stderr.decode(), printed
    assert not {*printed} & FORBIDDEN, repr(printed)
    assert done.returncode in {0, 1, 2}
    return done


LOOKING: list[tuple[str, ...]] = [
    ("dead", "list", SHOP),
    ("dead", "list", SHOP, "--json"),
    ("dead", "list", SHOP, "--type", HOSTILE),
    ("dead", "list", SHOP, "--reason", HOSTILE),
    ("dead", "export", SHOP),
    ("dead", "show", SHOP, HOSTILE),
    ("dead", "retry", SHOP, HOSTILE),
    ("status", SHOP),
    ("status", SHOP, "--json"),
    ("topology", "print", SHOP),
    ("plan", SHOP),
]


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: ascii(" ".join(words)))
async def test_what_it_prints_is_harmless(place: Place, words: tuple[str, ...]) -> None:
    """Neither what messages say nor what the arguments say reaches the terminal as it is."""
    run(place, *words)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
async def test_each_dead_letter_is_shown(place: Place, number: int, form: tuple[str, ...]) -> None:
    """With all that is known of it; a line feed in an id makes no line of its own."""
    letters = json.loads(run(place, "dead", "list", SHOP, "--json").stdout)
    shown = run(place, "dead", "show", SHOP, letters[number]["key"], *form)
    assert shown.returncode == 0
    if form:
        assert json.loads(shown.stdout)["id"] == letters[number]["id"]
    else:
        lines = shown.stdout.decode().splitlines()
        assert len([line for line in lines if line.startswith("reason: ")]) == 1


SENT: dict[str, bytes] = {
    "no JSON": b"no\n",
    "not UTF-8": b'{"id": "\xff"}\n',
    "NUL": b'{"id": "a\\u0000b"}\n',
    "lone surrogate": b'{"id": "\\ud800"}\n',
    "nested 100,000 deep": b"[" * 100_000 + b"\n",
    "integer of 5,000 digits": b'{"id": ' + b"9" * 5000 + b"}\n",
    "controls": json.dumps({"id": HOSTILE}).encode() + b"\n",
    "empty lines": b"\n\r\n\n",
    "id of 10 KB": b'{"id": "' + b"i" * 10_000 + b'"}\n',
    "a list": b"[1, 2]\n",
    "cut off": b'{"id": "x"',
}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("name", SENT)
async def test_what_cannot_be_sent_is_told(place: Place, name: str, form: tuple[str, ...]) -> None:
    """On one line, with an exit code; what can be sent is."""
    run(place, "send", "-", "--to", SHOP, "--type", "Order", "--id-from", "id", *form, stdin=SENT[name])


async def test_dead_letters_are_sent_back_and_given_up_again(place: Place) -> None:
    """A retry of all of them changes nothing but when they were given up, and the worker goes on."""
    before = len(await place.dead())
    run(place, "dead", "retry", SHOP, "--all", "--json")
    await place.start().ready()
    await place.queue.send(cloud_event("after the retry"), b"{}")

    async def settled() -> bool:
        return len(await place.dead()) >= before and await place.handled() >= 1

    await place.until(settled, "the dead letters come back")
