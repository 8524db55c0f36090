"""URLs of NATS: what they may say, and that no message ever repeats their password."""

import pytest

from onceonly import Endpoint
from onceonly.adapters.nats.address import DEFAULT_MAX_BODY, read_address
from onceonly.adapters.nats.link import NatsLink
from onceonly.adapters.nats.transport import NatsTransport
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.runtime.environment import SystemClock, SystemRandomSource
from tests.servers.available import NATS, free_port, need

SECRET = "s3cr3t"  # noqa: S105 - one that must not be seen


def test_a_url_says_all_there_is_to_say() -> None:
    """Options of ours are taken out."""
    address = read_address(
        f"nats+tls://me:{SECRET}@a:4222,b?prefix=x.&lease=90&max_body=5&timeout=3&replicas=3&cafile=/ca&verify=no"
    )
    assert (address.prefix, address.lease, address.max_body, address.timeout, address.replicas) == ("x.", 90.0, 5, 3.0, 3)
    assert (address.user, address.password, address.cafile, address.verifies) == ("me", SECRET, "/ca", False)
    assert (address.servers, address.place) == (("tls://a:4222", "tls://b"), "nats+tls://a:4222,b")


def test_a_user_without_a_password_is_a_token() -> None:
    """As in URLs of the driver."""
    address = read_address(f"nats://{SECRET}@host")
    assert (address.user, address.password, address.max_body) == (SECRET, None, DEFAULT_MAX_BODY)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"nats://me:{SECRET}@", "not a NATS URL"),
        (f"nats://me:{SECRET}@host:port", "not a NATS URL"),
        (f"nats://me:{SECRET}@host/odd", "not a NATS URL"),
        (f"nats://me:{SECRET}/odd@host", "cannot be read: percent-encode"),
        (f"nats://me:{SECRET}@host?speed=9", "unknown option 'speed'.*prefix"),
        (f"nats://me:{SECRET}@host?prefix=a&prefix=b", "more than once"),
        (f"nats://me:{SECRET}@host?prefix=A", "lower-case letter"),
        (f"nats://me:{SECRET}@host?lease=soon", "number of seconds"),
        (f"nats://me:{SECRET}@host?timeout=0", "number of seconds"),
        (f"nats://me:{SECRET}@host?max_body=0", "number of bytes from 1"),
        (f"nats://me:{SECRET}@host?replicas=6", "number of replicas from 1 to 5"),
        (f"nats://me:{SECRET}@host?cafile=x", r"nats\+tls://"),
        (f"nats+tls://me:{SECRET}@host?keyfile=x", "certfile"),
        (f"nats+tls://me:{SECRET}@host?verify=maybe", "true or false"),
    ],
)
def test_a_wrong_url_is_a_setup_error_without_its_password(url: str, why: str) -> None:
    """It says what to change, when the endpoint is defined."""
    with pytest.raises(SetupError, match=why) as caught:
        Endpoint("shop", store="memory://a", transport=url)
    assert SECRET not in str(caught.value)


async def opening(url: str) -> str:
    """Try to use a server; gives what went wrong, with the kind of error."""
    link = NatsLink(read_address(url), SystemRandomSource())
    try:
        await NatsTransport(link, "shop", clock=SystemClock()).receive(1, 0)
    except (CommitFailed, SetupError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await link.close()
    return ""


@pytest.mark.slow
async def test_a_server_that_is_away_is_told_without_its_password() -> None:
    """It may come back, so this is no fault of the set-up."""
    told = await opening(f"nats://me:{SECRET}@127.0.0.1:{free_port()}")
    assert told.startswith("CommitFailed: cannot connect to nats://127.0.0.1:")
    assert SECRET not in told


@pytest.mark.slow
async def test_the_second_server_is_used_while_the_first_is_away() -> None:
    """The error is about the queue, so there is a connection."""
    place = need(NATS).partition("://")[2]
    assert "QueueMissing" in await opening(f"nats://127.0.0.1:{free_port()},{place}?prefix=nobody.")


async def test_a_body_that_the_server_cannot_take_is_a_setup_error() -> None:
    """Before any message is committed that could not be sent."""
    assert "SetupError" in (told := await opening(f"{need(NATS)}?max_body=1048576"))
    assert "max_payload" in told
