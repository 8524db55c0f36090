"""The URL of queues in SQS, and the names of queues and topics behind it. No driver is needed to read it.

The queue of an endpoint `shop` is `onceonly-queue-shop`. The topic of an event type `shop.order.v1` is
`onceonly-event-shop_2eorder_2ev1`. With `fifo=true` all names but those of queues for delayed messages end in `.fifo`.
"""

from msgspec import Struct

from onceonly.adapters.aws.address import AwsAccess, read_access, split_url
from onceonly.model.errors import SetupError
from onceonly.ports.transport import DestinationRule, FanOut, Traits
from onceonly.queues.names import LETTERS, EscapedNames, read_prefix
from onceonly.systems.urls import read_number, read_truth

MOST_BYTES = 1024 * 1024
"""What SQS takes in one message, and in one batch: body, names, types and values of attributes."""
MOST_ENTRIES = 10
"""Messages in one request."""
LONGEST_DELAY_SECONDS = 900
"""What SQS offers for one message. A FIFO queue delays none."""
HEADER_BYTES = 64 * 1024
"""The part of a message that is left for headers."""
DEFAULT_MAX_BODY = (MOST_BYTES - HEADER_BYTES) // 4 * 3
"""A body that is not text takes a third more, because it is written in base64."""
DEFAULT_LEASE_SECONDS = 30
LONGEST_LEASE_SECONDS = 12 * 3600
_QUEUE_RULE = "the name or the URL of a queue in SQS"
_QUEUE_NAME = r"(https?://[^\s/]+/\S+/)?[A-Za-z0-9_-]{1,80}"
DESTINATIONS = (
    DestinationRule(kind="queue", names=_QUEUE_NAME + r"\.fifo", name_rule=_QUEUE_RULE),
    DestinationRule(kind="queue", names=_QUEUE_NAME, name_rule=_QUEUE_RULE, longest_delay=LONGEST_DELAY_SECONDS),
    DestinationRule(
        kind="topic",
        names=r"arn:[a-z0-9-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?",
        name_rule="the ARN of a topic in SNS",
    ),
)
"""SNS delays nothing, and a FIFO queue delays no single message."""
_OPTIONS = ("prefix", "lease", "fifo", "max_body", "endpoint", "timeout")
_PREFIX = r"[A-Za-z0-9][A-Za-z0-9_-]{0,29}", "a letter or digit, then at most 29 of A-Z, a-z, 0-9, '_' and '-'"
FIFO = ".fifo"
LONGEST_QUEUE, LONGEST_TOPIC = 80, 256
"""Characters of a name, with the prefix and the suffix."""
_QUEUE, _DELAYED, _EVENT = "onceonly-queue-", "onceonly-delayed-", "onceonly-event-"
_NAMES = EscapedNames(LETTERS, mark="_", hashed="_hash_", hash_bytes=10)


class SqsAddress(Struct, frozen=True, kw_only=True):
    """An account and a region as a URL names them, and the options of this library.

    `prefix` begins every name. `lease` is the number of seconds for which a delivery is kept from other receivers. `fifo` is
    whether queues and topics are FIFO ones. `max_body` is in bytes.
    """

    access: AwsAccess
    prefix: str = ""
    lease: int = DEFAULT_LEASE_SECONDS
    fifo: bool = False
    max_body: int = DEFAULT_MAX_BODY

    @property
    def traits(self) -> Traits:
        return Traits(
            lease=float(self.lease),
            max_body=self.max_body,
            orders_keys=self.fifo,
            longest_delay=0.0 if self.fifo else LONGEST_DELAY_SECONDS,
            most_received=MOST_ENTRIES,
            most_sent=MOST_ENTRIES,
            fan_out=FanOut.BROKER,
            destinations=DESTINATIONS,
        )

    @property
    def place(self) -> str:
        return f"sqs://{self.access.region}"

    @property
    def largest(self) -> int:
        """The bytes of a message with the largest body and the largest headers."""
        return -(-self.max_body // 3) * 4 + HEADER_BYTES


def read_sqs(url: str) -> SqsAddress:
    """Take `sqs://REGION?prefix=...&lease=...&fifo=true&endpoint=...` apart. Raises SetupError; it never repeats a secret."""
    parts, options = split_url(url, "sqs", _OPTIONS)
    if not parts.hostname or parts.path.strip("/"):
        raise SetupError("an SQS URL needs a region, and no path: use one such as sqs://eu-central-1")
    return SqsAddress(
        access=read_access(parts, options, parts.hostname),
        prefix=read_prefix(options, *_PREFIX),
        lease=read_number(options, "lease", DEFAULT_LEASE_SECONDS, most=LONGEST_LEASE_SECONDS, unit="seconds"),
        fifo=read_truth(options, "fifo", default=False),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=DEFAULT_MAX_BODY, unit="bytes"),
    )


class SqsNames(Struct, frozen=True):
    """The names of all objects behind a prefix."""

    prefix: str = ""
    fifo: bool = False

    def queue(self, endpoint: str) -> str:
        return f"{self.prefix}{_QUEUE}{self._queue_word(endpoint)}{self._suffix}"

    def delayed(self, endpoint: str) -> str:
        """Name the queue for delayed messages: a FIFO queue delays no single message."""
        return f"{self.prefix}{_DELAYED}{self._queue_word(endpoint)}" if self.fifo else self.queue(endpoint)

    def delayed_of(self, queue: str) -> str:
        """Name the queue for delayed messages of a queue. It is that queue itself unless it is a FIFO queue of an endpoint."""
        start = f"{self.prefix}{_QUEUE}"
        if not queue.endswith(FIFO) or not queue.startswith(start):
            return queue
        return f"{self.prefix}{_DELAYED}{queue.removeprefix(start).removesuffix(FIFO)}"

    def topic(self, kind: str) -> str:
        return f"{self.prefix}{_EVENT}{_NAMES.write(kind, self._longest_kind)}{self._suffix}"

    def topics(self) -> str:
        return f"{self.prefix}{_EVENT}*"

    def kind_of(self, topic: str) -> str | None:
        """Return the event type of a topic; None for a hash, and for a topic of others."""
        start = f"{self.prefix}{_EVENT}"
        kind = _NAMES.read(topic.removeprefix(start).removesuffix(self._suffix), self._longest_kind)
        return kind if kind is not None and self.topic(kind) == topic else None

    @property
    def _longest_kind(self) -> int:
        return LONGEST_TOPIC - len(self.prefix) - len(_EVENT) - len(FIFO)

    @property
    def _suffix(self) -> str:
        return FIFO if self.fifo else ""

    def _queue_word(self, endpoint: str) -> str:
        return _NAMES.write(endpoint, LONGEST_QUEUE - len(self.prefix) - len(_DELAYED) - len(FIFO))
