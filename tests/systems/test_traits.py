"""What a broker can do is data of its system, and its transport has the same."""

import runpy
from pathlib import Path

import pytest

from onceonly import Context, Endpoint
from onceonly.assembly import open_transport
from onceonly.config.location import Location, locate, read_url, scheme_of
from onceonly.endpoint.host import host_of
from onceonly.ports.transport import Traits
from onceonly.systems import System, systems
from tests import ROOT
from tests.endpoint.harness import incoming
from tests.log_events import event_in

BROKERS: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "generate" / "__main__.py"))["BROKERS"]
URLS = [
    *(url for url in BROKERS.values() if not url.startswith(("postgresql:", "azure-queue:"))),
    "nats://localhost?lease=7&max_body=1000",
    "amqp://localhost?max_body=1000",
    "redis://localhost?lease=7&max_body=1000",
    "kafka://localhost?max_body=1000",
    "sqs://eu-central-1?lease=7&max_body=1000",
    "azure-queue://acme:a2V5@acme?lease=7&max_body=1000",
    "servicebus://acme.servicebus.windows.net?lease=7&max_body=1000",
]


def test_every_system_with_queues_tells_what_it_can_do_and_is_compared() -> None:
    """The URLs of a database of another kind have the same traits as those of PostgreSQL, which has the row."""
    serving = {scheme: system for scheme, system in systems().items() if system.serves("transport")}
    compared = {id(locate(url, "transport").system) for url in BROKERS.values()}
    assert [scheme for scheme, system in serving.items() if system.traits is None] == []
    assert [scheme for scheme, system in serving.items() if id(system) not in compared and system.dialect is None] == []
    databases = {locate(f"{scheme}://localhost/shop", "transport").traits for scheme, each in serving.items() if each.dialect}
    assert databases == {read_url("postgresql://localhost/shop").traits}


@pytest.mark.parametrize("url", URLS)
async def test_the_transport_has_the_traits_of_its_url(url: str) -> None:
    """So there is one source for each fact. Nothing connects."""
    known = locate(url, "transport").traits
    async with open_transport(url, "shop") as transport:
        assert transport.traits == known
    if "lease=7" in url:
        assert known is not None
        assert known.lease == 7
    if "max_body=1000" in url:
        assert known is not None
        assert known.max_body == 1000


async def test_a_queue_in_a_database_has_the_traits_of_its_url(tmp_path: Path) -> None:
    """Also the lease."""
    url = f"sqlite:///{tmp_path / 'queue.db'}?lease=7"
    async with open_transport(url, "shop") as transport:
        assert transport.traits == locate(url, "transport").traits
        assert transport.traits.lease == 7


def test_options_that_change_the_order_show_in_the_traits() -> None:
    """FIFO queues and sessions keep the order of a key."""
    kept = {url for url in BROKERS.values() if (traits := read_url(url).traits) is not None and traits.orders_keys}
    assert {scheme_of(url) for url in kept} == {"kafka", "sqs", "servicebus"}
    assert all(url.endswith(("fifo=true", "sessions=true")) for url in kept if scheme_of(url) != "kafka")


def test_a_system_need_not_tell() -> None:
    """A plug-in of an earlier version does not, and the transport that it opens has no more than two traits."""
    place = Location("toymq://shops", System(name="toy"), read_url("memory://x").driver)
    assert place.traits is None
    assert Traits(lease=30.0, max_body=10).orders_keys is False


@pytest.mark.parametrize(
    ("transport", "warnings"),
    [("redis://localhost", ["message key has no effect"]), ("sqs://eu-central-1?fifo=true", [])],
)
async def test_a_key_without_an_effect_is_logged_once(
    transport: str, warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """At the first message with a key, not before."""
    caplog.set_level("WARNING", "onceonly.transport")
    shop = Endpoint(f"shop-{transport[:3]}", store="sqlite:///:memory:", transport=transport)

    @shop.handler(type="order")
    async def order(message: bytes, context: Context) -> None:
        context.send(message, to="other", type="x", key="A")

    builder = host_of(shop).handlers()._builder
    assert caplog.messages == []
    used = Context(builder, incoming(), now=1)
    used.send(b"", to="other", type="x")
    assert caplog.messages == []
    for _ in range(2):
        used.send(b"", to="other", type="x", key="A")
    assert [event_in(record) for record in caplog.records] == warnings
