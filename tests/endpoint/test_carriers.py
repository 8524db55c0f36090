"""Carriers: what sends messages of another library next to the endpoint's transport, or without one."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from onceonly import Endpoint, Tokens
from onceonly.assembly import open_transport, require_records
from onceonly.errors import InvalidEffect, SetupError
from onceonly.model.destination import Carrier
from onceonly.model.message import Send
from onceonly.ports.transport import Answer, Topology
from onceonly.systems import carriers
from onceonly.systems.carriers import carrier_names, register_carrier, use_carriers

LARGE = 1 << 20


class PigeonCarrier:
    """Takes everything but what is too heavy."""

    def __init__(self) -> None:
        self.sent: list[Send] = []
        self.arrivals: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = 0

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send these."""
        self.sent += sends
        for each in sends:
            self.arrivals.put_nowait(each.message.body[:6])
        return tuple(Answer.REFUSED if b"heavy" in each.message.body else Answer.TAKEN for each in sends)

    async def close(self) -> None:
        """Count it."""
        self.closed += 1


@pytest.fixture
def pigeon(monkeypatch: pytest.MonkeyPatch) -> PigeonCarrier:
    """Register a carrier for one test."""
    monkeypatch.setattr(carriers, "_OPENERS", {})
    monkeypatch.setattr(carriers, "_ENDPOINTS", {"shop"})
    found = PigeonCarrier()
    register_carrier("pigeon", lambda: found)
    return found


@pytest.fixture
async def shop(tmp_path: Path) -> Endpoint:
    """Make an endpoint without a transport, with its tables."""
    found = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", relay_after=0.05)
    found.handler(type="ignored")(ignore)
    async with found.opened():
        pass
    return found


async def ignore(_body: dict[str, str]) -> None:
    """Do nothing."""


async def commit(shop: Endpoint, *bodies: bytes, to: str = "pigeon:roof") -> None:
    """Commit messages for the carrier."""
    engine = create_async_engine(str(shop.settings.store).replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncSession(engine) as session, session.begin():
        for body in bodies:
            shop.enlist(session).send(body, to=Carrier(to), type="Letter")
    await engine.dispose()


async def test_an_endpoint_without_a_transport_sends_to_a_carrier(shop: Endpoint, pigeon: PigeonCarrier) -> None:
    """At once, and what was committed before."""
    await commit(shop, b"before")
    async with shop.sending():
        await commit(shop, b"after", b"x" * LARGE)
        arrived = {await pigeon.arrivals.get() for _ in range(3)}
    assert arrived == {b"after", b"before", b"xxxxxx"}
    assert {each.to for each in pigeon.sent} == {"carrier:pigeon:roof"}
    assert pigeon.closed == 1


async def test_the_transport_has_the_others(tmp_path: Path, pigeon: PigeonCarrier) -> None:
    """In one batch, with the answers in order."""
    queue = f"sqlite:///{tmp_path}/queue.db"
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport=queue)
    async with open_transport(queue, "mail") as mail, shop.sending():
        await mail.declare([Topology(endpoint="mail")])
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
        async with AsyncSession(engine) as session, session.begin():
            tx = shop.enlist(session)
            tx.send({"a": 1}, to="mail", type="Mail")
            tx.send(b"heavy", to=Carrier("pigeon:roof"), type="Letter")
            tx.send(b"light", to=Carrier("pigeon:roof"), type="Letter")
        (arrived,) = await mail.receive(10, 5.0)
        taken = {await pigeon.arrivals.get() for _ in range(2)}
        await engine.dispose()
    assert arrived.body == b'{"a":1}'
    assert taken == {b"heavy", b"light"}


async def test_what_no_carrier_takes_is_refused_at_the_call(shop: Endpoint, pigeon: PigeonCarrier) -> None:
    """With the names of those that are there."""
    with pytest.raises(InvalidEffect, match="no carrier 'snail', but pigeon"):
        await commit(shop, b"a", to="snail:garden")
    engine = create_async_engine(str(shop.settings.store).replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncSession(engine) as session, session.begin():
        tx = shop.enlist(session)
        with pytest.raises(InvalidEffect, match="delays nothing"):
            tx.send(b"a", to=Carrier("pigeon:roof"), type="Letter", delay=timedelta(seconds=1))
        with pytest.raises(InvalidEffect, match="has no transport"):
            tx.send(b"a", to="mail", type="Letter")
        with pytest.raises(InvalidEffect, match="16777216"):
            tx.send(bytes(17 * LARGE), to=Carrier("pigeon:roof"), type="Letter")
    await engine.dispose()
    assert carrier_names() == ("pigeon",)
    assert pigeon.sent == []


def test_an_endpoint_with_tokens_has_no_carrier(tmp_path: Path, pigeon: PigeonCarrier) -> None:
    """A carrier would never use a token up."""
    shop = Endpoint(
        "shop", store=f"sqlite:///{tmp_path}/shop.db", transport="memory://carriers", deduplication=Tokens(subscribers={})
    )
    assert "token" in str(shop.settings.destinations(()).problem(Carrier("pigeon:roof")))
    assert pigeon.sent == []


def test_an_endpoint_that_uses_no_carrier_has_nothing_to_send(pigeon: PigeonCarrier) -> None:
    """Another one of its process may use some."""
    other = Endpoint("other", store="sqlite:///other.db")
    assert not other.settings.sends
    with pytest.raises(SetupError, match="no transport"):
        require_records(other.settings)
    use_carriers("other")
    assert other.settings.sends
    require_records(other.settings)
    assert pigeon.sent == []
