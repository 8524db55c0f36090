"""Parameters as they stand in the text of a statement, right in every `sql_mode`.

asyncmy writes them there itself. It escapes text by the mode that the server has reported last. It escapes bytes, and text
inside of sequences, by backslashes alone. In the mode NO_BACKSLASH_ESCAPES these ended at the first quote inside, and the rest
of the value was executed.
"""

from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from time import struct_time

_OWN = bool | int | float | Decimal | date | time | timedelta | struct_time | None
"""The types whose literals have no characters to escape."""


def literal(plain: Callable[[object], str], value: object) -> str:
    """Return the literal of a value. `plain` is the driver's own function, which is right for text.

    A value of a type that the driver does not know is written as its text, as the driver does.
    """
    if isinstance(value, str | _OWN):
        return plain(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"_binary X'{value.hex()}'"
    if isinstance(value, tuple | list | set | frozenset):
        return f"({','.join([literal(plain, each) for each in value])})"
    return plain(str(value))
