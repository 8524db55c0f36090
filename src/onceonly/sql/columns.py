"""The types of this library's columns. In Python a value is the same on every database.

Each kind of column has a class, so that a dialect can register another type for it; see `onceonly.sql.dialect`. The types for
the databases of this library are here, because migration tools need them without a driver.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Dialect, Integer, LargeBinary, String, Text, Uuid
from sqlalchemy.dialects.mysql import BINARY, LONGBLOB, LONGTEXT, VARBINARY, VARCHAR
from sqlalchemy.types import TypeDecorator, TypeEngine

from onceonly.model.identity import CLAIM_KEY_BYTES, FINGERPRINT_BYTES

NAME_LENGTH = 255
MYSQL = ("mysql", "mariadb")
_EXACTLY = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}  # what MariaDB compares as it is written; the default does not

TRANSACTIONAL: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
"""Options of every table: MariaDB has table engines that cannot roll back."""


class BytesAsUuid(TypeDecorator[bytes]):
    """Sixteen bytes in a native `uuid` column, which compares them as bytes."""

    impl = Uuid(as_uuid=True)
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[bytes | None], str | None]:
        """Write it in hexadecimal digits, which every driver takes: to make UUIDs and take them apart costs more."""
        return _hexadecimal

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else value.bytes


def _hexadecimal(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


class BytesAsNumber(TypeDecorator[bytes]):
    """Eight bytes in a `bigint`, which has no length of its own to store."""

    impl = BigInteger
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[bytes | None], int | None]:
        return _number

    def process_result_value(self, value: int | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.to_bytes(FINGERPRINT_BYTES, "big", signed=True)


def _number(value: bytes | None) -> int | None:
    return None if value is None else int.from_bytes(value, "big", signed=True)


class Undecodable(str):
    """What stands for bytes that are not text, with escapes: another program wrote them. It is not what is stored."""

    __slots__ = ()


class TextAsBytes(TypeDecorator[str]):
    """Any text, with zero characters and half surrogates, exactly: text columns take neither, or compare loosely."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Take the longest type there is."""
        return dialect.type_descriptor(LONGBLOB() if dialect.name in MYSQL else LargeBinary())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode(errors="surrogatepass")

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        """Decode. Bytes that are not text cost only themselves: an error here would fail all rows of a query."""
        if value is None:
            return None
        try:
            return bytes(value).decode(errors="surrogatepass")
        except UnicodeDecodeError:
            return Undecodable(bytes(value).decode(errors="backslashreplace"))


class TextKey(TextAsBytes):
    """A primary key of up to `length` bytes: the UTF-8 of a text. It is compared and ordered as bytes. Default: LargeBinary."""

    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Take bytes; MariaDB wants to know how many."""
        return dialect.type_descriptor(VARBINARY(self.length) if dialect.name in MYSQL else LargeBinary())


class EscapedText(TypeDecorator[str]):
    """Text for people and their filters; what the database cannot store is written as an escape."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Take the longest type there is, compared exactly."""
        return dialect.type_descriptor(LONGTEXT(**_EXACTLY) if dialect.name in MYSQL else Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\\0").encode(errors="backslashreplace").decode()


class ClaimKey(LargeBinary):
    """A primary key of 16 bytes, which is compared and ordered as bytes."""


class Fingerprint(LargeBinary):
    """8 bytes of a hash, which are compared for equality."""


class Data(LargeBinary):
    """Bytes of any length."""


class ExactText(Text):
    """Text of any length that comes back as it was, also with zero characters and half surrogate pairs."""


class ReadableText(Text):
    """Text for people, who also search for it. It is compared exactly, by code points and with case."""


class LongText(Text):
    """Text of any length that this library writes."""


class ShortName(String):
    """A name of up to 255 characters that can be part of a key. It is compared exactly, by code points and with case."""


class RowNumber(BigInteger):
    """A primary key that the database counts up."""


KEY: TypeEngine[bytes] = (
    ClaimKey(CLAIM_KEY_BYTES).with_variant(BytesAsUuid(), "postgresql").with_variant(BINARY(CLAIM_KEY_BYTES), *MYSQL)
)
"""A claim's key: 16 bytes that sort as bytes."""

FINGERPRINT: TypeEngine[bytes] = (
    Fingerprint(FINGERPRINT_BYTES).with_variant(BytesAsNumber(), "postgresql").with_variant(BINARY(FINGERPRINT_BYTES), *MYSQL)
)
"""A body's fingerprint: 8 bytes."""

EXACT: TypeEngine[str] = ExactText().with_variant(TextAsBytes(), "postgresql", *MYSQL)
"""Text of any length that comes back exactly, whatever is in it."""

READABLE: TypeEngine[str] = ReadableText().with_variant(EscapedText(), "postgresql", *MYSQL)
"""Text that people filter by, compared exactly."""

NAME: TypeEngine[str] = ShortName(NAME_LENGTH).with_variant(VARCHAR(NAME_LENGTH, **_EXACTLY), *MYSQL)
"""A short name that may be part of a key, compared exactly."""

DATA: TypeEngine[bytes] = Data().with_variant(LONGBLOB(), *MYSQL)
"""Bytes of any length."""

LONG: TypeEngine[str] = LongText().with_variant(LONGTEXT(**_EXACTLY), *MYSQL)
"""Text of any length, made by this library."""

INSTANT = BigInteger()
"""Milliseconds since 1970."""

SEQUENCE: TypeEngine[int] = RowNumber().with_variant(Integer, "sqlite")
"""A number that counts up on its own; only an INTEGER PRIMARY KEY does that in SQLite."""
