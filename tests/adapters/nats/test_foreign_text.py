"""Names, subjects, headers and answers that others chose: each costs itself, and nothing else. See `tests/fuzzing.py`."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import msgspec
import pytest
from nats.aio.client import Client

from onceonly.adapters.nats.delays import _MessageAnswer
from onceonly.adapters.nats.inbox import Pull, deliveries_of
from onceonly.adapters.nats.link import (
    NatsArrival,
    NatsConnection,
    NatsRequest,
    _Batch,
    _decode_response,
    _outcome,
    read_answer,
)
from onceonly.adapters.nats.names import NatsNames, kind_of, subscriber_of
from onceonly.adapters.nats.requirements import consumer_rules, problems, stream_rules, unknown
from onceonly.adapters.nats.topology import ConsumerInfo, _SubjectsAnswer
from onceonly.adapters.nats.wire import MOVED, SERVERS_MOST_BYTES, copied_headers, read_headers, write_headers
from onceonly.formats import undecodable
from onceonly.formats.cloudevents import UNREADABLE
from onceonly.formats.log_events import MOST_KEYS
from onceonly.model.errors import CommitFailed
from onceonly.model.limits import is_endpoint_name
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.queues.destinations import CopyOutcome
from tests.adapters.nats.harness import EVENT, PATIENCE, Broker, commands, ids, message, opened, take
from tests.fuzzing import Inputs, inputs
from tests.log_events import event_in

LATE, PAST = 4_000_000_000_000, 1_700_000_000_000
STRAY = (b"x.y", b"garbage", b"*.*", b">", b"a.b.c.d.e", b"1.-1", b"00000000001.0000000000000x", b"\x01.\x02", b"\xff.\xfe")
STRAYS = (*STRAY, ("\u0660" * 11 + "." + "\u0661" * 14).encode(), b"00000000001.*", b"*.00000000000001")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened() as place:
        yield place


@pytest.fixture(autouse=True)
def _nothing_logged() -> None:
    """Begin as a process that has logged nothing."""
    undecodable._REPORTED_AT_BROKER.clear()


async def put(broker: Broker, *messages: tuple[bytes, bytes, bytes], stream: str = "") -> None:
    """Publish subjects, headers and bodies as they are, and wait until a stream has stored each."""
    client = Client()
    await client.connect(broker.server)
    for subject, headers, body in messages:
        inbox = client.new_inbox()
        answer = await client.subscribe(inbox)
        sizes = b"%d %d" % (len(headers), len(headers) + len(body)) if headers else b"%d" % len(body)
        verb = b"HPUB" if headers else b"PUB"
        await client._send_command(b"%s %s %s %s\r\n%s%s\r\n" % (verb, subject, inbox.encode(), sizes, headers, body))
        await client.flush()
        assert b'"seq"' in (await answer.next_msg(timeout=PATIENCE)).data, stream
    await client.close()


# Names of subscribers


@pytest.mark.parametrize(
    "name",
    ["a b", "a\tb", "x 2\r\nhi\r\nPUB {} 2\r\nno\r\nPUB y", ">", "*", "", "shop\n", "\x00", "Shop", "a" * 64, "köln"],
    ids=repr,
)
async def test_a_name_that_no_endpoint_has_is_not_written_into_a_command(
    broker: Broker, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Any user who may publish subscriptions chooses it. The event goes to all others, and nothing else is sent."""
    victim = f"{broker.names.prefix}victim"
    written = broker.names.subscription(EVENT, name.format(victim)) if name else broker.names.subscription(EVENT, "=")
    await put(broker, (written.encode(), b"", b""))
    async with broker.plain() as client:
        heard = await client.subscribe(f"{broker.names.prefix}victim")
        everything = await client.subscribe(f"{broker.names.prefix}onceonly.queue.>")
        await client.flush()
        transport = await broker.transport()
        for _ in range(2):
            assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
        await client.publish(victim, b"last")
        assert (await heard.next_msg(timeout=PATIENCE)).data == b"last"
        await client.publish(broker.names.queue_subject("last"), b"")
        subjects = [(await everything.next_msg(timeout=PATIENCE)).subject for _ in range(3)]
        assert subjects == [broker.subject, broker.subject, broker.names.queue_subject("last")]
    told = [record for record in caplog.records if event_in(record) == "unreadable data at the broker"]
    assert len(told) == 1
    assert vars(told[0])["found"].isascii()
    assert vars(told[0])["found"].isprintable()


@pytest.mark.parametrize("subject", ["a b", "a\r\nPUB b 0\r\n", "", "a\x00", "\x7f", "x" * 2001, "\ud800"])
async def test_a_subject_with_a_blank_or_a_control_character_is_refused_where_commands_are_written(
    broker: Broker, subject: str
) -> None:
    """Those around it are sent."""
    link = await broker.link()
    outcomes = await link.publish([NatsRequest(broker.subject), NatsRequest(subject), NatsRequest(broker.subject)])
    assert outcomes == [CopyOutcome.TAKEN, CopyOutcome.REFUSED, CopyOutcome.TAKEN]


async def test_a_message_over_the_servers_limit_is_refused_and_the_connection_stays(broker: Broker) -> None:
    """The server would close the connection, with all that others wait for on it."""
    link = await broker.link()
    connection = await link.connection()
    large = bytes(connection.max_payload)
    outcomes = await link.publish([NatsRequest(broker.subject), NatsRequest(broker.subject, large, b"NATS/1.0\r\n\r\n")])
    assert outcomes == [CopyOutcome.TAKEN, CopyOutcome.REFUSED]
    assert await link.connection() is connection


async def test_a_command_to_a_name_that_no_endpoint_has_is_refused(broker: Broker) -> None:
    """Such as one in a record that another program wrote."""
    transport = await broker.transport()
    sends = [*commands("m1", to="a b"), *commands("m2", to="x\r\nPUB y 0\r\n", due=LATE), *commands("m3")]
    assert await transport.send(sends) == (Answer.REFUSED, Answer.REFUSED, Answer.TAKEN)


# Delayed messages


async def test_subjects_without_an_instant_stop_no_delayed_message(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """What they brought is unreadable: a dead letter with its body. A literal wildcard is not used for other messages."""
    transport = await broker.transport()
    await transport.send([*commands("late", due=LATE)])
    start = broker.names.all_delayed_for("shop")[:-1].encode()
    headers = write_headers((("ce-id", "odd"), ("nats-msg-id", "foreign"), ("x", "y")))
    await put(broker, *[(start + each, headers, b"body of %d" % number) for number, each in enumerate(STRAYS)])
    await put(broker, (broker.names.delayed_until("shop", PAST).encode(), write_headers((("ce-id", "due"),)), b""))
    assert await transport.depth("shop") == msgspec.structs.replace(
        await transport.depth("shop"), waiting=len(STRAYS) + 1, held=0, delayed=1
    )
    got = await take(transport, len(STRAYS) + 1)
    unreadable = [each for each in got if each.headers[0][0] == UNREADABLE]
    assert sorted(each.body for each in unreadable) == sorted(b"body of %d" % number for number in range(len(STRAYS)))
    assert all(dict(each.headers)["ce-id"] == "odd" for each in unreadable)
    assert ids([each for each in got if each not in unreadable]) == ["due"]
    await transport.ack(got)
    depth = await transport.depth("shop")
    assert (depth.waiting, depth.held, depth.delayed) == (0, 0, 1)
    assert len([each for each in caplog.records if event_in(each) == "unreadable data at the broker"]) == len(STRAYS)


@pytest.mark.parametrize("size", [65_000, 65_480, 65_535], ids=str)
async def test_delayed_messages_with_headers_of_any_size_are_moved(broker: Broker, size: int) -> None:
    """Those who come behind one in the same subject, too. Percent-encoding would have made the copy too large."""
    subject = broker.names.delayed_until("shop", PAST).encode()
    start, end = b"NATS/1.0\r\nce-subject: ", b"\r\nce-id: large\r\n\r\n"
    large = start + "é".encode() * ((size - len(start) - len(end)) // 2) + end
    await put(broker, (subject, large, b"1"), (subject, write_headers((("ce-id", "next"),)), b"2"))
    transport = await broker.transport()
    assert sorted(ids(await take(transport, 2))) == ["large", "next"]


async def test_a_delayed_message_as_large_as_the_server_takes_is_moved(broker: Broker) -> None:
    """There is no room for its `Nats-Msg-Id`, without which the copy is stored as well."""
    connection = await (await broker.link()).connection()
    subject, headers = broker.names.delayed_until("shop", PAST).encode(), write_headers((("ce-id", "large"),))
    await put(broker, (subject, headers, bytes(connection.max_payload - len(headers))))
    await put(broker, (subject, write_headers((("ce-id", "next"),)), b""))
    assert sorted(ids(await take(await broker.transport(), 2))) == ["large", "next"]


async def test_a_delayed_message_that_its_queue_never_takes_holds_up_no_other(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays where it is, and is named."""
    await broker.change(max_msg_size=1000)
    subject = broker.names.delayed_until("shop", PAST).encode()
    bodies = [b"", bytes(2000), b"", bytes(2000), b""]
    sent = [(subject, write_headers((("ce-id", f"m{number}"),)), body) for number, body in enumerate(bodies)]
    await put(broker, *sent)
    transport = await broker.transport()
    got = await take(transport, 3)
    assert sorted(ids(got)) == ["m0", "m2", "m4"]
    await transport.ack(got)
    async with asyncio.timeout(PATIENCE):
        while (await transport.depth("shop")).waiting > 2:  # a copy is received before its original is deleted  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await transport._delays.move()
    assert (await transport.depth("shop")).waiting == 2
    assert len([each for each in caplog.records if event_in(each) == "unreadable data at the broker"]) == 2


async def test_many_strays_are_moved(broker: Broker) -> None:
    """Random subjects, on a real server. Newer ones list no subject with DEL: see `delays`."""
    transport, start = await broker.transport(), broker.names.all_delayed_for("shop")[:-1].encode()
    letters = bytes(sorted({*range(1, 256)} - {*b" \t\r\n.\x0b\x0c\x00\x7f"}))
    count = max(40, inputs() // 500)
    subjects = [
        start + bytes(letters[(number * 31 + at * 17 + number // 7) % len(letters)] for at in range(1 + number % 9)) + b".z"
        for number in range(count)
    ]
    await put(broker, *[(subject, b"", b"%d" % number) for number, subject in enumerate(subjects)])
    got: list[Delivery] = []
    async with asyncio.timeout(PATIENCE + count / 20):
        while len(got) < count:
            taken = await take(transport, 1)
            await transport.ack(taken)
            got += taken
            transport._delays._search_at = 0
    assert sorted(int(each.body) for each in got) == list(range(count))


# Fuzzing: everything that is read. See `tests/fuzzing.py`.

NAMES = NatsNames("p.")
SUBJECT_LETTERS = "=0123456789abcdef.*> \r\n\x00\u0660\ud800"


def digits(inputs: Inputs, least: int, most: int) -> str:
    """Return a number of some length."""
    return "".join(inputs.choices("0123456789" if inputs.random() < 0.9 else "0123456789\u0660", k=inputs.randint(least, most)))


def any_subject(inputs: Inputs) -> str:
    """Return a subject: one of those that the library reads, or a text."""
    way = inputs.randrange(4)
    if way == 0:
        return inputs.word()
    if way == 1:
        return f"p.onceonly.subscription.{any_token(inputs)}.{any_token(inputs)}"
    exact = f"{digits(inputs, 11, 11)}.{digits(inputs, 14, 14)}"
    near = f"{digits(inputs, 9, 12)}.{digits(inputs, 12, 15)}"
    return f"p.onceonly.delayed.shop.{inputs.choice((exact, near, any_token(inputs)))}"


def any_token(inputs: Inputs) -> str:
    """Return a part of a subject, perhaps an encoded one."""
    encoded = "".join(
        inputs.choice((f"={inputs.randrange(256):02x}", inputs.choice("abz"))) for _ in range(inputs.randrange(9))
    )
    return inputs.choice((encoded, inputs.word(SUBJECT_LETTERS, 20)))


def test_fuzz_subjects() -> None:
    """A time only if it is written as the library does, an endpoint only if it may have the name."""
    inputs = Inputs()
    for _ in inputs.rounds():
        subject = any_subject(inputs)
        due = NAMES.due_of("shop", subject)
        assert due is None or (due % 100 == 0 and 0 <= due < 10**16)
        assert due is None or subject[-14:].isascii()
        name = subscriber_of(subject)
        assert name is None or is_endpoint_name(name)
        kind = kind_of(subject)
        assert kind is None or NAMES.subscription(kind, "x").rpartition(".")[0].endswith(
            subject.rpartition(".")[0].rpartition(".")[2]
        )


KNOWN_LINES = (
    *(b"Nats-Msg-Id: x", b"NATS-ROLLUP:all", b" nats-ttl: 1", b"Nats-Msg-Id:onceonly-delayed-1-2", b"ce-id: %41", b"ce-id: x"),
    *(b"x-onceonly-escaped-ce-id: %ff", b": x", b"x:", b"x", b"\tfolded"),
)


def any_headers(inputs: Inputs) -> bytes:
    """Return bytes of headers, most of them with the version and lines."""
    if inputs.random() < 0.2:
        return inputs.data()
    lines = [inputs.choice((inputs.choice(KNOWN_LINES), inputs.data())) for _ in range(inputs.randrange(5))]
    return b"\r\n".join((inputs.choice((b"NATS/1.0", b"NATS/1.0", b"x")), *lines, b"", b""))


def test_fuzz_headers() -> None:
    """A copy is read as its original, or as unreadable; the server finds no other words in it than our own."""
    inputs = Inputs()
    for _ in inputs.rounds():
        given = any_headers(inputs)
        msg_id, unreadable, most = inputs.clean("abc-09"), inputs.choice(("", "no time")), inputs.randrange(300)
        read = read_headers(given)
        assert all(isinstance(part, str) for header in read for part in header)
        copied_headers(given, msg_id=MOVED + msg_id, unreadable=unreadable, most=most)
        copied = copied_headers(given, msg_id=MOVED + msg_id, unreadable=unreadable, most=SERVERS_MOST_BYTES)
        lines = [line for line in copied.split(b"\r\n") if line.lower().lstrip().startswith(b"nats-")]
        assert len(lines) <= 1
        if unreadable:
            assert read_headers(copied)[0][0] == UNREADABLE
        elif not (read and read[0][0] == UNREADABLE):
            assert read_headers(copied) == read


def any_reply(inputs: Inputs) -> bytes:
    """Return the subject to which a delivery is acknowledged, or another one."""
    if inputs.random() < 0.2:
        return inputs.data()
    parts = ["".join(inputs.choices("abc", k=3)) for _ in range(inputs.randint(2, 4))]
    parts += [digits(inputs, 1, 20) for _ in range(inputs.randint(4, 6))]
    plain = ".".join(("$JS.ACK", *parts)).encode(errors="replace")
    return inputs.changed(plain) if inputs.random() < 0.4 else plain


def test_fuzz_deliveries() -> None:
    """Others may publish to an inbox. What has no receipt of a server is the end of a request."""
    inputs = Inputs()
    for _ in inputs.rounds():
        pull = Pull.__new__(Pull)
        pull.messages, pull.is_over, pull.problem, pull._limit = [], False, "", 5
        pull._done = cast("Any", _Done())
        pull.take(NatsArrival(b"s", any_reply(inputs), any_headers(inputs), b""))
        for each in pull.messages:
            assert deliveries_of(each) >= 0
            assert each.reply.decode().isprintable()
            assert " " not in each.reply.decode()
        assert pull.messages or (pull.is_over and len(pull.problem) < 200)


class _Done:
    """A future that is done."""

    def done(self) -> bool:
        """Return that it is."""
        return True


def test_fuzz_answers_to_requests() -> None:
    """Others may publish to the inbox of answers, with any subject."""
    inputs = Inputs()
    for _ in inputs.rounds():
        connection = cast("Any", NatsConnection.__new__(NatsConnection))
        batch = cast("Any", _Batch.__new__(_Batch))
        batch.answers, batch.done, batch._subjects, batch._left = [None, None], _Done(), ["a", "b"], 2
        connection._prefix, connection._batches = b"_INBOX.x.", {b"1": batch}
        name, number = (
            inputs.data(),
            inputs.choice((inputs.data(12), digits(inputs, 0, 30).encode(errors="replace"), b"-1", b"1_0")),
        )
        for subject in (b"_INBOX.x." + name + b"." + number, b"_INBOX.x.1." + number, number):
            connection._answer(NatsArrival(subject, b"", b"", b""))
        assert len(batch.answers) == 2


FIELDS = ("error", "state", "subjects", "message", "seq", "subject", "data", "hdrs", "time", "config", "num_pending", "code")


def any_answer(inputs: Inputs, depth: int = 2) -> object:
    """Return an answer of the API with known fields, or any JSON."""
    if depth == 0 or inputs.random() < 0.3:
        return inputs.tree(2)
    return {inputs.choice(FIELDS): any_answer(inputs, depth - 1) for _ in range(inputs.randrange(5))}


def test_fuzz_answers_of_the_api() -> None:
    """An answer that is not as documented fails its call, with one of the library's errors."""
    inputs = Inputs()
    for _ in inputs.rounds():
        body = json.dumps(any_answer(inputs)).encode()
        for each in (body, inputs.changed(body)):
            assert _outcome(NatsArrival(b"s", b"", b"", each)) is not CopyOutcome.MISSING
            try:
                response = _decode_response(each)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            for kind in (_SubjectsAnswer, _MessageAnswer, ConsumerInfo):
                _read_or_refused(response, kind)


def _read_or_refused(response: dict[str, Any], kind: type[object]) -> None:
    try:
        read_answer(response, kind)
    except CommitFailed:
        return


def test_fuzz_settings() -> None:
    """Values of any kind: each rule says yes or no."""
    inputs, rules = Inputs(), (stream_rules("s"), consumer_rules("s", 1))
    names = [*rules[0], *rules[1]]
    for _ in inputs.rounds():
        config = {inputs.choice((inputs.choice(names), inputs.clean())): inputs.tree() for _ in range(inputs.randrange(6))}
        for each in rules:
            told: Sequence[str] = [*problems(config, each), *unknown(config, each)]
            assert all(len(line) < 500 for line in told)


def test_what_is_shown_is_escaped_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    """In a log and in errors; and a process logs a thing once, and not more than a thousand things."""
    assert undecodable.shown("a\r\n\x1b\ud800é") == r"a\r\n\x1b\ud800\xe9"
    assert undecodable.shown(b"\xff\n") == r"\xff\n"
    assert len(undecodable.shown("x" * 10_000_000)) < 200
    caplog.set_level(logging.WARNING)
    for number in range(MOST_KEYS + 100):
        undecodable.report_unreadable("shop", "name", f"{number}", "ignored")
        undecodable.report_unreadable("shop", "name", f"{number}", "ignored")
    assert len(caplog.records) == MOST_KEYS
