"""URLs of Service Bus: what they may say, and that no message ever repeats their key."""

import pytest

from examples.shop_demo.rabbitmq import free_port
from onceonly import Endpoint
from onceonly.adapters.azure.servicebus.address import DEFAULT_MAX_BODY, read_servicebus
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.ports.transport import Topology
from tests.servers.servicebus.entities import Refused
from tests.servers.servicebus.harness import commands, opened

SECRET = "c2VjcmV0c2VjcmV0"  # noqa: S105 - one that must not be seen
HOST = "acme.servicebus.windows.net"


def test_a_url_says_all_there_is_to_say() -> None:
    """Characters of a key are written with percent signs."""
    options = "prefix=demo_&lease=90&max_body=5&timeout=3&sessions=true&manage=false"
    address = read_servicebus(f"servicebus://root:{SECRET}%2F%2B=@{HOST}?{options}")
    assert (address.host, address.key_name, address.key) == (HOST, "root", f"{SECRET}/+=")
    assert (address.prefix, address.lease, address.max_body, address.timeout) == ("demo_", 90, 5, 3.0)
    assert (address.sessions, address.manages, address.emulator) == (True, False, False)
    assert SECRET not in address.place


def test_a_url_needs_no_key() -> None:
    """Then azure-identity finds a credential."""
    address = read_servicebus(f"servicebus://{HOST}")
    assert (address.key_name, address.key, address.prefix) == ("", "", "")
    assert (address.lease, address.max_body, address.sessions, address.manages) == (60, DEFAULT_MAX_BODY, False, True)


def test_an_emulator_has_ports_and_a_shorter_lease() -> None:
    """The port of AMQP has a default, too."""
    address = read_servicebus("servicebus://root:key@localhost?emulator=true&management_port=7&lease=1")
    assert (address.host, address.management_port, address.lease) == ("localhost:5672", 7, 1)
    assert read_servicebus("servicebus://root:key@localhost:99?emulator=true").host == "localhost:99"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"servicebus://root:{SECRET}@", "has no host"),
        (f"servicebus://root:{SECRET}/x@{HOST}", "cannot be read: percent-encode"),
        (f"servicebus://root:{SECRET}@{HOST}/queue", "without a path"),
        (f"servicebus://root:{SECRET}@{HOST}:5671", "a port .* is for an emulator only"),
        (f"servicebus://root:{SECRET}@{HOST}?management_port=5300", "a port .* is for an emulator only"),
        (f"servicebus://root:@{HOST}", "the name of a key and the key"),
        ("servicebus://localhost?emulator=true", "an emulator needs a key"),
        (f"servicebus://root:{SECRET}@{HOST}?prefix=Shop", "prefix 'Shop'"),
        (f"servicebus://root:{SECRET}@{HOST}?prefix={'x' * 32}", "at most 30"),
        (f"servicebus://root:{SECRET}@{HOST}?speed=9", "unknown option 'speed'"),
        (f"servicebus://root:{SECRET}@{HOST}?lease=5&lease=6", "more than once"),
        (f"servicebus://root:{SECRET}@{HOST}?lease=4", "whole number of seconds from 5 to 300"),
        (f"servicebus://root:{SECRET}@{HOST}?lease=301", "whole number of seconds from 5 to 300"),
        (f"servicebus://root:{SECRET}@{HOST}?lease=5.5", "whole number of seconds from 5 to 300"),
        (f"servicebus://root:{SECRET}@{HOST}?max_body=0", "whole number of bytes from 1"),
        (f"servicebus://root:{SECRET}@{HOST}?timeout=soon", "number of seconds"),
        (f"servicebus://root:{SECRET}@{HOST}?sessions=perhaps", "true or false"),
        (f"servicebus://root:{SECRET}@{HOST}?manage=2", "true or false"),
    ],
)
def test_a_wrong_url_is_a_setup_error_without_its_key(url: str, why: str) -> None:
    """It says what to change, when the endpoint is defined."""
    with pytest.raises(SetupError, match=why) as caught:
        Endpoint("shop", store="memory://a", transport=url)
    assert SECRET not in str(caught.value)


async def test_a_key_that_is_refused_is_a_setup_error(caplog: pytest.LogCaptureFixture) -> None:
    """The service refuses its token, for receiving and for sending."""
    async with opened() as place:
        place.broker.refused_operations["cbs"] = Refused("amqp:unauthorized-access", "InvalidSignature")
        url = place.url.replace("tester:secret", f"tester:{SECRET}")
        transport = await place.transport(url=url)
        for call in (transport.receive(1, 0), transport.send(commands("m1"))):
            with pytest.raises(SetupError, match="Check the key of the URL") as caught:
                await call
            assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text


async def test_a_key_without_the_right_manage_lists_what_to_create() -> None:
    """And a start works when all of it exists."""
    async with opened() as place:
        place.server.administration.allowed = False
        transport = await place.transport("audit")
        with pytest.raises(SetupError, match=r"queue 'audit' with lock duration 60 s.*topic 'event__a\.b' with subscription"):
            await transport.declare([Topology(endpoint="audit", events=("a.b",))])
        await (await place.transport()).declare([Topology(endpoint="shop")])
        (warning,) = (await (await place.transport()).check()).warnings
        assert "were not checked" in warning
        assert await transport.subscriptions("audit") is None


@pytest.mark.parametrize("options", ["", "&sessions=true"])
async def test_a_service_that_is_away_is_no_fault_of_the_setup(options: str) -> None:
    """It may come back."""
    async with opened() as place:
        url = f"servicebus://root:{SECRET}@127.0.0.1:{free_port()}?emulator=true&timeout=5{options}"
        transport = await place.transport(url=url)
        for call in (transport.receive(1, 0), transport.send(commands("m1")), transport.declare([Topology(endpoint="shop")])):
            with pytest.raises(CommitFailed) as caught:
                await call
            assert SECRET not in str(caught.value)
