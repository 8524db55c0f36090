"""URLs of Azure queues: what they may say, and that no message ever repeats their key."""

import pytest

from onceonly import Endpoint
from onceonly.adapters.azure.address import VARIABLE
from onceonly.adapters.azure.queue.address import DEFAULT_MAX_BODY, read_queue
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.ports.transport import Topology
from tests.adapters.azure.queue.harness import opened
from tests.servers.available import free_port
from tests.servers.azurite import Azurite

SECRET = "c2VjcmV0c2VjcmV0"  # noqa: S105 - one that must not be seen


@pytest.fixture(autouse=True)
def _no_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_url_says_all_there_is_to_say() -> None:
    """The key is that of all services of the account."""
    address = read_queue(f"azure-queue://me:{SECRET}@acme/shop?lease=90&max_body=5&poll=7&timeout=3&prefix=demo_1_")
    assert (address.lease, address.max_body, address.poll, address.timeout) == (90, 5, 7.0, 3.0)
    assert (address.prefix, address.place) == ("shopdemo1", "azure-queue://acme/shopdemo1")
    assert (address.account.key, address.account.endpoint) == (SECRET, "https://acme.queue.core.windows.net")


def test_a_url_needs_no_prefix() -> None:
    """Then it is `onceonly`."""
    address = read_queue(f"azure-queue://me:{SECRET}@acme")
    assert (address.prefix, address.lease, address.max_body) == ("onceonly", 30, DEFAULT_MAX_BODY)
    assert read_queue("azure-queue://acme?endpoint=http://127.0.0.1:1/acme").account.endpoint == "http://127.0.0.1:1/acme"


def test_a_connection_string_says_where_the_queues_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the same account."""
    monkeypatch.setenv(VARIABLE, f"AccountName=acme;AccountKey={SECRET};QueueEndpoint=http://127.0.0.1:1/acme")
    account = read_queue("azure-queue://acme/shop").account
    assert (account.key, account.endpoint) == (SECRET, "http://127.0.0.1:1/acme")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"azure-queue://me:{SECRET}@", "azure-queue://account/prefix"),
        (f"azure-queue://me:{SECRET}@Not_An_Account", "azure-queue://account/prefix"),
        (f"azure-queue://me:{SECRET}/x@acme", "cannot be read: percent-encode"),
        (f"azure-queue://me:{SECRET}!@acme", "not Base64"),
        (f"azure-queue://me:{SECRET}@acme/a/b", "at most one part"),
        (f"azure-queue://me:{SECRET}@acme/my-shop", "prefix 'my-shop'"),
        (f"azure-queue://me:{SECRET}@acme/Shop", "prefix 'Shop'"),
        (f"azure-queue://me:{SECRET}@acme/shop?prefix={'x' * 17}", "at most 20"),
        (f"azure-queue://me:{SECRET}@acme?prefix=_", "at most 20"),
        (f"azure-queue://me:{SECRET}@acme?speed=9", "unknown option 'speed'.*prefix"),
        (f"azure-queue://me:{SECRET}@acme?lease=5&lease=6", "more than once"),
        (f"azure-queue://me:{SECRET}@acme?lease=1.5", "whole number of seconds from 1 to 604800"),
        (f"azure-queue://me:{SECRET}@acme?lease=604801", "whole number of seconds"),
        (f"azure-queue://me:{SECRET}@acme?max_body=45057", "bytes from 1 to 45056"),
        (f"azure-queue://me:{SECRET}@acme?max_body=0", "bytes from 1"),
        (f"azure-queue://me:{SECRET}@acme?poll=0", "number of seconds"),
        (f"azure-queue://me:{SECRET}@acme?timeout=soon", "number of seconds"),
        (f"azure-queue://me:{SECRET}@acme?endpoint=acme.example", "must begin with https://"),
    ],
)
def test_a_wrong_url_is_a_setup_error_without_its_key(url: str, why: str) -> None:
    """It says what to change, when the endpoint is defined."""
    with pytest.raises(SetupError, match=why) as caught:
        Endpoint("shop", store="memory://a", transport=url)
    assert SECRET not in str(caught.value)


async def test_a_wrong_key_is_a_setup_error_at_start(azurite_storage: Azurite) -> None:
    """Later it is an outage: a key may be replaced while a worker runs."""
    async with opened(azurite_storage) as broker:
        url = f"azure-queue://me:{SECRET}@devstoreaccount1/{broker.prefix}?endpoint={azurite_storage.queue}/devstoreaccount1"
        transport = await broker.transport(url=url)
        with pytest.raises(SetupError, match="the account key, token or clock is wrong") as caught:
            await transport.declare([Topology(endpoint="shop")])
        assert SECRET not in str(caught.value)
        with pytest.raises(SetupError):
            await transport.check()
        with pytest.raises(CommitFailed):
            await transport.receive(1, 0)


async def test_a_service_that_is_away_is_told_without_the_key(azurite_storage: Azurite) -> None:
    """It may come back, so this is no fault of the set-up."""
    async with opened(azurite_storage) as broker:
        url = f"azure-queue://me:{SECRET}@acme?endpoint=http://127.0.0.1:{free_port()}/acme"
        with pytest.raises(CommitFailed, match="Azure storage is unreachable, cannot receive") as caught:
            await (await broker.transport(url=url)).receive(1, 0)
        assert SECRET not in str(caught.value)


async def test_an_endpoint_without_encryption_is_warned_of(azurite_storage: Azurite) -> None:
    """It is an emulator, or a mistake."""
    async with opened(azurite_storage) as broker:
        (told,) = (await (await broker.transport()).check()).warnings
        assert "http://" in told
