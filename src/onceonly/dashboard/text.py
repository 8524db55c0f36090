"""Text from messages as pages show it: control and bidirectional characters become visible; numbers, ages and instants."""

import re
import unicodedata
from datetime import UTC, datetime

from onceonly.model.durations import in_words

_CONTROL_PICTURES = 0x2400
_DELETE, _DELETE_PICTURE = 0x7F, "\N{SYMBOL FOR DELETE}"
# Characters that change how others are shown, or that cannot be seen: controls, formats, surrogates, private, unassigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\t")
_PLAIN = re.compile(r"[\t\n\x20-\x7e]*")
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds since 1970: the years 1 to 9999


def visible(text: str) -> str:
    """Replace characters that cannot be seen, or that move others: ESC by its picture, U+202E by its number in brackets.

    Line feeds and tabs stay. A carriage return before a line feed stays hidden.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_shown, text.replace("\r\n", "\n")))


def _shown(character: str) -> str:
    if character in _KEPT or (character.isascii() and character.isprintable()):
        return character
    code = ord(character)
    if code < 32:  # noqa: PLR2004 - C0 controls have pictures
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return _DELETE_PICTURE
    hidden = unicodedata.category(character) in _HIDDEN
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{code:04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}" if hidden else character


def number(value: float) -> str:
    """Write a number with thousands separators; decimals only below 100."""
    if isinstance(value, int) or value == int(value) or abs(value) >= 100:  # noqa: PLR2004 - three digits are enough
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def age(seconds: float) -> str:
    """Write an age in its largest unit or two; whole seconds below a minute."""
    return f"{max(0, int(seconds))} s" if seconds < 60 else in_words(seconds)  # noqa: PLR2004 - a minute


def duration(microseconds: int) -> str:
    """Write the duration of a handler: milliseconds below a second, else as an age."""
    if microseconds < 1_000_000:  # noqa: PLR2004 - a second
        return f"{number(microseconds / 1000)} ms"
    seconds = microseconds / 1_000_000
    return f"{seconds:.1f} s" if seconds < 60 else in_words(seconds)  # noqa: PLR2004 - a minute


def size(count: int) -> str:
    """Write a number of bytes."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - the next unit is shorter
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def instant(milliseconds: int) -> str:
    """Write an instant in UTC: 2026-11-22 12:01:07Z. The nearest year from 1 to 9999."""
    return f"{_utc(milliseconds):%Y-%m-%d %H:%M:%S}Z".rjust(20, "0")


def clock(milliseconds: int) -> str:
    """Write the time of day of an instant, in UTC: 12:01."""
    return f"{_utc(milliseconds):%H:%M}"


def machine_time(milliseconds: int) -> str:
    """Write an instant for the `datetime` attribute."""
    return _utc(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(min(max(milliseconds // 1000, _FIRST), _LAST), UTC)
