"""The URL of queues in an Azure storage account. No driver is needed to read it."""

import re
from urllib.parse import quote, urlunsplit

from msgspec import Struct

from onceonly.adapters.azure.address import AzureAddress, read_address
from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits
from onceonly.systems.urls import read_number, read_options, read_seconds, split_parts

DEFAULT_PREFIX = "onceonly"
LONGEST_PREFIX = 20
DEFAULT_MAX_BODY = 28 * 1024
"""With it, 16 KiB of headers fit into a message of 64 KiB, whatever they and the body consist of."""
GREATEST_MAX_BODY = 44 * 1024
MOST_RECEIVED = 32
"""Messages that one request receives or peeks at."""
LONGEST_HIDDEN_SECONDS = 7 * 24 * 3600
"""How long Azure hides a message."""
LONGEST_LEASE = 7 * 24 * 3600
_OPTIONS = ("endpoint", "prefix", "lease", "max_body", "poll", "timeout")
_PREFIX = re.compile(r"[a-z0-9_]+")


class AzureQueueAddress(Struct, frozen=True, kw_only=True):
    """A storage account as a URL names it, and the options of this library. `place` may be shown.

    `prefix` begins every name. `lease` is for how many seconds a delivery is kept from other receivers. `max_body` is in bytes.
    `poll` is the longest pause between two looks at an empty queue, and `timeout` the wait for an answer, in seconds.
    """

    account: AzureAddress
    prefix: str = DEFAULT_PREFIX
    lease: int = 30
    max_body: int = DEFAULT_MAX_BODY
    poll: float = 1.0
    timeout: float = 10.0

    @property
    def traits(self) -> Traits:
        """What queues at this address are like."""
        return Traits(
            lease=float(self.lease),
            max_body=self.max_body,
            longest_delay=LONGEST_HIDDEN_SECONDS,
            most_received=MOST_RECEIVED,
            most_sent=1,
            fan_out=FanOut.SENDER,
        )

    @property
    def place(self) -> str:
        """Give the address without credentials."""
        return f"azure-queue://{self.account.account}/{self.prefix}"


def read_queue(url: str) -> AzureQueueAddress:
    """Read `azure-queue://account/prefix?options`. Raises SetupError, which never repeats a key."""
    parts = split_parts(url, "Azure queue", "azure-queue://account/prefix")
    options = read_options(parts.query, "Azure queue", _OPTIONS)
    endpoint = options.get("endpoint", "")
    query = f"endpoint={quote(endpoint, safe='')}" if endpoint else ""
    account = read_address(urlunsplit(parts._replace(query=query)), "queue")
    if len(account.parts) > 1:
        raise SetupError("an azure-queue URL has at most one part: azure-queue://account/prefix")
    return AzureQueueAddress(
        account=account,
        prefix=_prefix("".join(account.parts), options.get("prefix", "")),
        lease=read_number(options, "lease", 30, most=LONGEST_LEASE, unit="seconds"),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        poll=read_seconds(options, "poll", 1.0),
        timeout=read_seconds(options, "timeout", 10.0),
    )


def _prefix(path: str, option: str) -> str:
    """Return the letters and digits of both. A dash ends the prefix in names, and Azure allows no underscore in them."""
    if not path and not option:
        return DEFAULT_PREFIX
    written = (path + option).replace("_", "")
    if not _PREFIX.fullmatch(path + option) or not 0 < len(written) <= LONGEST_PREFIX:
        raise SetupError(
            f"prefix {path + option!r:.80} of Azure queues: use at most {LONGEST_PREFIX} of a-z and 0-9. "
            "Underscores are left out of the names"
        )
    return written
