"""The URL of queues in SQS. No driver is needed to read it."""

import re

from msgspec import Struct

from onceonly.adapters.aws.address import Access, read_access, split_url
from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits
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
_OPTIONS = ("prefix", "lease", "fifo", "max_body", "endpoint", "timeout")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,29}")


class SqsAddress(Struct, frozen=True, kw_only=True):
    """An account and a region as a URL names them, and the options of this library.

    `prefix` begins every name. `lease` is the number of seconds for which a delivery is kept from other receivers. `fifo` is
    whether queues and topics are FIFO ones. `max_body` is in bytes.
    """

    access: Access
    prefix: str = ""
    lease: int = DEFAULT_LEASE_SECONDS
    fifo: bool = False
    max_body: int = DEFAULT_MAX_BODY

    @property
    def traits(self) -> Traits:
        """What queues at this address are like."""
        return Traits(
            lease=float(self.lease),
            max_body=self.max_body,
            orders_keys=self.fifo,
            longest_delay=0.0 if self.fifo else LONGEST_DELAY_SECONDS,
            most_received=MOST_ENTRIES,
            most_sent=MOST_ENTRIES,
            fan_out=FanOut.BROKER,
        )

    @property
    def place(self) -> str:
        """Give the address without credentials."""
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
    prefix = options.get("prefix", "")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a letter or digit, then at most 29 of A-Z, a-z, 0-9, '_' and '-'")
    return SqsAddress(
        access=read_access(parts, options, parts.hostname),
        prefix=prefix,
        lease=read_number(options, "lease", DEFAULT_LEASE_SECONDS, most=LONGEST_LEASE_SECONDS, unit="seconds"),
        fifo=read_truth(options, "fifo", default=False),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=DEFAULT_MAX_BODY, unit="bytes"),
    )
