"""The URL of queues in an Azure storage account, and the names of these queues: 3 to 63 of a-z, 0-9 and single dashes.

No driver is needed to read it. The queue of an endpoint `shop` is `onceonly-q-shop`. What is not due waits in
`onceonly-d-shop`. A subscription is an empty queue `onceonly-s-HASH-HASH`; its metadata has the type and the endpoint.
"""

import re
from hashlib import blake2b
from urllib.parse import quote, unquote, urlunsplit

from msgspec import Struct

from onceonly.adapters.azure.address import AzureAddress, read_address
from onceonly.model.errors import SetupError
from onceonly.ports.transport import DestinationRule, FanOut, Traits
from onceonly.systems.urls import read_number, read_options, read_seconds, split_parts

DEFAULT_PREFIX = "onceonly"
LONGEST_PREFIX = 20
DEFAULT_MAX_BODY = 28 * 1024
"""With it, 16 KiB of headers fit into a message of 64 KiB, whatever they and the body consist of."""
GREATEST_MAX_BODY = 44 * 1024
MOST_RECEIVED = 32
"""Messages that one request receives or peeks at."""
LONGEST_HIDDEN_SECONDS = 7 * 24 * 3600
"""How long Azure hides a message that is delayed or held."""
DESTINATIONS = (
    DestinationRule(
        kind="queue",
        names=r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*",
        name_rule="the name of a queue in Azure Queue Storage",
        longest_delay=LONGEST_HIDDEN_SECONDS,
    ),
)
_OPTIONS = ("endpoint", "prefix", "lease", "max_body", "poll", "timeout")
_PREFIX = re.compile(r"[a-z0-9_]+")
LONGEST_NAME = 63
SUBSCRIBED, GONE = "subscribed", "gone"
"""What the metadata of a subscription says. It is not deleted when it ends: Azure keeps a deleted name for 30 seconds."""
_plain = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*").fullmatch
_other = re.compile(r"[^a-z0-9]+")


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
        return Traits(
            lease=float(self.lease),
            max_body=self.max_body,
            longest_delay=LONGEST_HIDDEN_SECONDS,
            most_received=MOST_RECEIVED,
            most_sent=1,
            fan_out=FanOut.SENDER,
            destinations=DESTINATIONS,
            carries_headers=False,
        )

    @property
    def place(self) -> str:
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
        lease=read_number(options, "lease", 30, most=LONGEST_HIDDEN_SECONDS, unit="seconds"),
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


class QueueNames(Struct, frozen=True):
    """The names of all queues behind a prefix, which has no dash."""

    prefix: str

    def queue(self, endpoint: str) -> str:
        return self._named("q", endpoint)

    def delayed(self, endpoint: str) -> str:
        """Name the queue of messages for an endpoint that are not due."""
        return self._named("d", endpoint)

    @property
    def subscriptions(self) -> str:
        return f"{self.prefix}-s-"

    def subscribers(self, kind: str) -> str:
        """Begin the names of all subscriptions to an event type."""
        return f"{self.subscriptions}{_hash(kind)}-"

    def subscription(self, kind: str, endpoint: str) -> str:
        return f"{self.subscribers(kind)}{_hash(endpoint)}"

    def _named(self, letter: str, endpoint: str) -> str:
        start = f"{self.prefix}-{letter}-"
        if _plain(endpoint) and len(start) + len(endpoint) <= LONGEST_NAME:
            return start + endpoint
        start, end = f"{self.prefix}-{letter}x-", _hash(endpoint)
        shown = _other.sub("-", endpoint.lower()).strip("-")[: LONGEST_NAME - len(start) - len(end) - 1].strip("-")
        return f"{start}{shown}-{end}" if shown else start + end


def subscription_metadata(kind: str, endpoint: str, state: str) -> dict[str, str]:
    """Return the metadata of a subscription. Metadata are headers of HTTP, so all but ASCII is percent-encoded."""
    return {"type": quote(kind), "endpoint": quote(endpoint), "state": state}


def read_subscription(metadata: dict[str, str] | None) -> tuple[str, str] | None:
    """Return the type and the endpoint of a subscription; None for one that has ended, and for what is none."""
    found = {name.lower(): value for name, value in (metadata or {}).items()}
    if found.get("state") != SUBSCRIBED or "type" not in found or not found.get("endpoint"):
        return None
    return unquote(found["type"]), unquote(found["endpoint"])


def _hash(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
