"""How much goes into one statement: keys by their number, rows by their size."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

KEYS_AT_ONCE = 10_000
"""SQLite takes 32,766 variables."""

BYTES_AT_ONCE = 4 << 20
"""MariaDB takes packets of 16 MiB by default, and some bytes are written as two."""

ROW_BYTES = 1024
"""What a row is taken to have next to its great column."""

Key = TypeVar("Key")


def chunks(keys: Sequence[Key], size: int = KEYS_AT_ONCE) -> Iterator[Sequence[Key]]:
    """Give keys in portions that one statement takes; none for none."""
    return (keys[start : start + size] for start in range(0, len(keys), size))


def packets(rows: Iterable[dict[str, Any]], column: str) -> Iterator[list[dict[str, Any]]]:
    """Put rows together that fit into one statement; `column` is the great one, of bytes."""
    packet: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        more = len(row[column]) + ROW_BYTES
        if packet and size + more > BYTES_AT_ONCE:
            yield packet
            packet, size = [], 0
        packet.append(row)
        size += more
    if packet:
        yield packet
