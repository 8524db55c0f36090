"""Random properties and headers, many at a time: all of them are settled, and the good messages among them are handled."""

import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.adversary.harness import GOOD, Place, RabbitQueue, opened_place
from tests.adversary.raw_amqp import Refused, field, properties, table, text
from tests.adversary.settling import PATIENCE
from tests.servers.available import MEASURED, RABBITMQ, need

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS, EACH = 20, 50
NAMES = st.one_of(
    st.sampled_from([f"ce-{name}".encode() for name in ("id", "source", "type", "time", "onceonlyhops", "onceonlyhistory")]),
    st.sampled_from(
        [b"ce-onceonlyattempts", b"ce-onceonlyalone", b"ce-conversationid", b"ce-token", b"content-type", b"CE-ID"]
    ),
    st.binary(max_size=40),
)
TEXTS = st.one_of(st.binary(max_size=60), st.text(max_size=30).map(lambda it: it.encode(errors="surrogatepass")))


def _nested(inside: "st.SearchStrategy[tuple[bytes, bytes]]") -> "st.SearchStrategy[tuple[bytes, bytes]]":
    fields = st.lists(st.builds(lambda name, value: field(name, *value), NAMES, inside), max_size=3)
    arrays = st.lists(inside.map(lambda it: it[0] + it[1]), max_size=3)
    return st.one_of(fields.map(lambda it: (b"F", table(*it))), arrays.map(lambda it: (b"A", table(*it))))


def _packed(kind: bytes, form: str, numbers: "st.SearchStrategy[float]") -> "st.SearchStrategy[tuple[bytes, bytes]]":
    return numbers.map(lambda number: (kind, struct.pack(form, number)))


VALUES = st.recursive(
    st.one_of(
        TEXTS.map(lambda it: (b"S", text(it))),
        TEXTS.map(lambda it: (b"x", text(it))),
        _packed(b"l", ">q", st.integers(-(2**63), 2**63 - 1)),
        _packed(b"T", ">Q", st.integers(0, 2**64 - 1)),
        _packed(b"d", ">d", st.floats()),
        st.binary(min_size=5, max_size=5).map(lambda it: (b"D", it)),
        st.sampled_from([(b"t", b"\1"), (b"V", b""), (b"b", b"\xff")]),
    ),
    _nested,
    max_leaves=5,
)
SHORT = st.binary(max_size=255)
MESSAGES = st.tuples(
    st.lists(st.tuples(NAMES, VALUES), max_size=6),
    st.dictionaries(
        st.sampled_from(["content_type", "message_id", "message_type", "app_id", "correlation_id"]), SHORT, max_size=3
    ),
    st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    st.booleans(),
    st.binary(max_size=50),
)


@pytest_asyncio.fixture
async def place(postgresql_url: str) -> AsyncIterator[Place]:
    """Run one worker on PostgreSQL and RabbitMQ."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        await place.start().ready()
        yield place


def _drawn() -> list[list[tuple[bytes, bytes]]]:
    """Draw all messages first: Hypothesis calls no coroutine. Each has a body of its own."""
    rounds: list[list[tuple[bytes, bytes]]] = []

    @seed(14)
    @settings(
        max_examples=ROUNDS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(MESSAGES, min_size=EACH, max_size=EACH))
    def draw(found: list[tuple[list[tuple[bytes, tuple[bytes, bytes]]], dict[str, bytes], int | None, bool, bytes]]) -> None:
        some = []
        for headers, texts, timestamp, is_event, body in found:
            number = len(rounds) * EACH + len(some)
            named = [field(name, *value) for name, value in headers]
            if is_event:
                own = ((b"ce-id", b"drawn %d" % number), (b"ce-source", b"drawn"), (b"ce-type", b"Order"))
                named += [field(name, b"S", text(value)) for name, value in own]
            raw = properties(headers=table(*named), timestamp=timestamp, **texts)
            some.append((raw, b"%d " % number + body))
        rounds.append(some)

    draw()
    return rounds


async def test_random_messages_stop_nothing(place: Place) -> None:
    """Every message that the server took is a row or a dead letter, or a copy of one; and the good ones are handled."""
    queue = place.queue
    assert isinstance(queue, RabbitQueue)
    slowest = taken = 0.0
    for drawn in _drawn():
        for raw, body in drawn:
            try:
                await queue.raw.publish(queue.name, body, raw)
                taken += 1
            except Refused:
                await queue.reconnect_raw()
        await place.good(GOOD)
        wanted = place.sent

        async def good_ones_are_handled(wanted: int = wanted) -> bool:
            rows = await place.value(f"SELECT count(*) FROM {place.prefix}effects WHERE name LIKE '666f726569676e-%'")
            return int(rows) == wanted

        slowest = max(slowest, await place.until(good_ones_are_handled, f"{GOOD} good messages", patience=PATIENCE))
    await place.audit()
    letters = len(await place.dead())
    assert letters > 0
    MEASURED.append(
        f"random messages: {taken:.0f} taken by the server, {letters} dead letters, "
        f"{await place.handled() - place.sent} handled; {GOOD} good ones behind each {EACH} after at most {slowest:.2f} s"
    )
