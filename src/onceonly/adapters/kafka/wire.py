"""Messages in the words of Kafka: CloudEvents attributes are headers that begin with `ce_`, as the Kafka binding writes them.

Values are UTF-8 and are not percent-encoded (section 3.2.3 of the binding). The key of a record is the message's partition key,
which is also the attribute `ce_partitionkey`.
"""

from typing import NamedTuple

from onceonly.formats.cloudevents import encode
from onceonly.model.escaping import is_utf8, raw
from onceonly.model.message import Send

PREFIX = "ce_"
OVERHEAD_BYTES = 128
"""What a record has beyond its key, headers and body, and a batch of one record beyond it, with room to spare."""
_OVERHEAD_OF_HEADER = 10  # two lengths of at most five bytes


class KafkaRecord(NamedTuple):
    """One record to send. Without a key, the partition is chosen at random."""

    topic: str
    key: bytes | None
    headers: list[tuple[str, bytes]]
    body: bytes


def write_record(send: Send, topic: str, *, most: int) -> KafkaRecord | None:
    """Write a message, without the tracebacks of its history if they make it too large.

    Returns None for a message of more than `most` bytes, and for one with a header whose name is not UTF-8.
    """
    for tracebacks in (True, False) if send.history else (True,):
        headers, body = encode(send, PREFIX, tracebacks=tracebacks)
        if not all(is_utf8(name) for name, _ in headers):
            return None
        written = [(name, raw(value)) for name, value in headers]
        key = raw(send.message.partition_key) if send.message.partition_key else None
        size = OVERHEAD_BYTES + len(key or b"") + len(body)
        size += sum(len(name.encode()) + len(value) + _OVERHEAD_OF_HEADER for name, value in written)
        if size <= most:
            return KafkaRecord(topic, key, written, body)
    return None
