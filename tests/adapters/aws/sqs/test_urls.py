"""URLs of SQS: what they may say, and that no message ever repeats their secret."""

import pytest

from onceonly import Endpoint
from onceonly.adapters.aws.sqs.address import DEFAULT_MAX_BODY, MOST_BYTES, read_sqs
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.adapters.aws.sqs.transport import SqsTransport
from onceonly.model.errors import CommitFailed
from onceonly.model.errors import SetupError as WrongSetup
from onceonly.runtime.environment import SystemClock
from tests.servers.available import free_port

SECRET = "s3cr3t"  # noqa: S105 - one that must not be seen


def test_a_url_says_all_there_is_to_say() -> None:
    """With the options that all URLs of AWS have."""
    address = read_sqs(f"sqs://me:{SECRET}@eu-west-1?prefix=a_B-&lease=90&fifo=yes&max_body=5&timeout=3&endpoint=http://h:1")
    assert (address.prefix, address.lease, address.fifo, address.max_body) == ("a_B-", 90, True, 5)
    access = address.access
    assert (access.region, access.key, access.secret, access.timeout) == ("eu-west-1", "me", SECRET, 3.0)
    assert (access.endpoint, address.place) == ("http://h:1", "sqs://eu-west-1")


def test_the_largest_message_is_what_sqs_takes() -> None:
    """In base64, with its headers."""
    assert read_sqs("sqs://eu-west-1").largest == MOST_BYTES
    assert read_sqs("sqs://eu-west-1?max_body=147456").largest == 256 * 1024
    assert read_sqs("sqs://eu-west-1").max_body == DEFAULT_MAX_BODY


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"sqs://me:{SECRET}@", "needs a region"),
        (f"sqs://me:{SECRET}@eu-west-1/odd", "no path"),
        (f"sqs://me:{SECRET}@EU_WEST", "not an AWS region"),
        (f"sqs://me:{SECRET}@eu-west-1?speed=9", "unknown option 'speed'"),
        (f"sqs://me:{SECRET}@eu-west-1?prefix=a&prefix=b", "set more than once"),
        (f"sqs://me:{SECRET}@eu-west-1?prefix=a.b", "prefix 'a.b'"),
        (f"sqs://me:{SECRET}@eu-west-1?prefix={'a' * 31}", "at most 29"),
        (f"sqs://me:{SECRET}@eu-west-1?lease=0.5", "whole number of seconds from 1 to 43200"),
        (f"sqs://me:{SECRET}@eu-west-1?lease=43201", "whole number of seconds from 1 to 43200"),
        (f"sqs://me:{SECRET}@eu-west-1?max_body={DEFAULT_MAX_BODY + 1}", "whole number of bytes from 1 to 737280"),
        (f"sqs://me:{SECRET}@eu-west-1?fifo=maybe", "true or false"),
        (f"sqs://me:{SECRET}@eu-west-1?timeout=0", "number of seconds"),
        (f"sqs://me:{SECRET}@eu-west-1?endpoint=host", "begins with https"),
    ],
)
def test_a_wrong_url_is_a_setup_error_without_its_secret(url: str, why: str) -> None:
    """It says what to change, when the endpoint is defined."""
    with pytest.raises(WrongSetup, match=why) as caught:
        Endpoint("shop", store="memory://a", transport=url)
    assert SECRET not in str(caught.value)


async def test_a_service_that_is_away_is_told_without_the_secret() -> None:
    """It may come back, so this is no fault of the set-up."""
    link = await SqsLink.open(read_sqs(f"sqs://me:{SECRET}@eu-west-1?endpoint=http://127.0.0.1:{free_port()}"))
    try:
        with pytest.raises(CommitFailed, match="nothing was sent") as caught:
            await SqsTransport(link, "shop", clock=SystemClock()).receive(1, 0)
    finally:
        await link.close()
    assert SECRET not in str(caught.value)
