"""Inputs of fuzz tests: how many, and what others may have written. All are seeded, so a failure comes again.

Each test tries 1,000, or what the environment variable ONCEONLY_FUZZ says:

ONCEONLY_FUZZ=100000 pytest --timeout 0 -q tests -k fuzz
"""

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

LARGEST, LONGEST = 2**31 - 1, 2**63 - 1
NUMBERS: tuple[object, ...] = (
    *(0, 1, 2, -1, 255, LARGEST, LARGEST + 1, -LARGEST - 1, LONGEST, -LONGEST - 1, LONGEST + 1, 2**64, 2**70, 10**400),
    *(0.5, -0.0, 1e300, -1e300, float("inf"), float("-inf"), float("nan")),
)
_COLUMNS = tuple(
    each
    for each in NUMBERS
    if each == each and (not isinstance(each, int) or -LONGEST - 1 <= each <= LONGEST)  # noqa: PLR0124 - NaN is null there
)
TEXTS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1e5",
        "٣",
        "9" * 400,
        "null",
        "true",
        "[]",
        "{}",
        "[[",
        '"',
        "'",
        "\\",
        "\0",
        "\x1b[2J",
        "\r\n",
        "é",
    ),
    *("\ud800", "\udcff", "\ufffe", "😀", "../..", "%00", "%", "=41", "a b", "*", ">", "'; DROP TABLE x; --", "x" * 300),
)
BYTES = (b"", b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00\x01\x02", b"{}", b"[]", b"null", b"[" * 5000, b'{"a":' * 5000)


def inputs() -> int:
    """Return the number of inputs of each fuzz test."""
    return int(os.environ.get("ONCEONLY_FUZZ", "1000"))


class Inputs(random.Random):
    """Values that others may have written. The same seed gives the same ones."""

    def __init__(self, seed: int = 38) -> None:
        super().__init__(seed)

    def rounds(self, each: int = 1) -> range:
        """Return one number for each round that tries so many inputs at once."""
        return range(max(1, inputs() // each))

    def word(self, letters: str = "ab01=.:/-_ é\0\r\n\"'\\{[%\ud800", most: int = 12) -> str:
        """Return a short text of letters that have a meaning somewhere, or one that is known to be odd."""
        if self.random() < 0.2:
            return self.choice(TEXTS)
        return "".join(self.choices(letters, k=self.randrange(most + 1)))

    def clean(self, letters: str = "ab01=.:/-_ é\0\r\n\"'\\{[%", most: int = 12) -> str:
        """Return such a text without half surrogates."""
        return self.word(letters, most).encode(errors="replace").decode()

    def data(self, most: int = 30) -> bytes:
        """Return some bytes."""
        return self.choice(BYTES) if self.random() < 0.1 else self.randbytes(self.randrange(most + 1))

    def scalar(self) -> Any:
        """Return a value without parts."""
        return self.choice((None, True, False, self.choice(NUMBERS), self.randrange(1000), self.clean(), self.clean()))

    def tree(self, depth: int = 3) -> Any:
        """Return a value as JSON has it, and numbers that JSON has not."""
        if depth == 0 or self.random() < 0.5:
            return self.scalar()
        if self.random() < 0.5:
            return [self.tree(depth - 1) for _ in range(self.randrange(4))]
        return {self.clean(): self.tree(depth - 1) for _ in range(self.randrange(4))}

    def column(self) -> object:
        """Return a value that a column of SQLite may have, whatever its type is. It is never null."""
        return self.choice((self.choice(_COLUMNS), self.clean(), self.data(), json.dumps(self.tree())))

    def changed(self, plain: bytes) -> bytes:
        """Cut bytes, change some, put some in, or make others."""
        way = self.random()
        if way < 0.15:
            return self.data()
        found = bytearray(plain[: self.randrange(len(plain) + 1)] if way < 0.35 else plain)
        for _ in range(self.randrange(1, 4)):
            at = self.randrange(len(found) + 1)
            if self.random() < 0.3:
                found[at:at] = self.data(4)
            elif at < len(found):
                found[at] = self.choice((self.randrange(256), found[at] ^ 1 << self.randrange(8)))
        return bytes(found)

    def document(self, plain: bytes) -> bytes:
        """Return a JSON document like this one: with changed bytes, or with other values at some places."""
        if self.random() < 0.3:
            return self.changed(plain)
        return json.dumps(self._altered(json.loads(plain))).encode()

    def _altered(self, value: Any) -> Any:
        if self.random() < 0.1:
            return self.tree(2)
        if isinstance(value, dict):
            kept = {name: self._altered(each) for name, each in value.items() if self.random() > 0.03}
            return kept | ({self.clean(): self.tree(1)} if self.random() < 0.05 else {})
        if isinstance(value, list):
            return [self._altered(each) for each in value if self.random() > 0.03] * self.choice((1, 1, 1, 2))
        if isinstance(value, str) and self.random() < 0.2:
            return self.changed(value.encode(errors="replace")).decode(errors="replace")
        return value


def cases(*values: object) -> Iterator[tuple[int, object]]:
    """Number values that are always tried first."""
    return enumerate(values)


def pairs(inputs: Inputs, names: Sequence[str], make: Callable[[], str]) -> tuple[tuple[str, str], ...]:
    """Return headers with these names, and others."""
    return tuple((inputs.choice(names) if inputs.random() < 0.7 else inputs.word(), make()) for _ in range(inputs.randrange(6)))


def choice_of(inputs: Inputs, known: Mapping[str, Callable[[], object]]) -> dict[str, object]:
    """Return some of these fields, each with its own kind of value or another one."""
    return {name: make() if inputs.random() < 0.7 else inputs.tree(1) for name, make in known.items() if inputs.random() < 0.8}
