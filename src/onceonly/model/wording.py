"""Names, numbers and durations as people write and read them."""

import re
from datetime import timedelta


def an(name: str) -> str:
    """Return a name with its article. It goes by the letter: `a User`, `a UUID`, and so `a Upload` as well."""
    return f"{'an' if name[:1].lower() in set('aeio') else 'a'} {name}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 record`, `2,000 records`. The plural of the noun must end in `s`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SECONDS = dict(_UNITS) | {"m": 60, "w": 604_800}
_PART = r"\s*(\d+(?:\.\d+)?)\s*(w|d|h|min|m|s)"
LONGEST = timedelta(days=3650)
FOREVER = timedelta.max
"""A retention that never ends: nothing is forgotten, so what is kept grows with every message."""
FOREVER_MS = FOREVER // timedelta(milliseconds=1)
NEVER_ENDS = "forever"


def in_words(duration: timedelta | float) -> str:
    """Spell a duration, or a number of seconds, out: the two largest units that are not zero; below a minute with decimals."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if seconds >= FOREVER.total_seconds():
        return NEVER_ENDS
    if seconds < 0:
        return f"-{in_words(-seconds)}"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.3g} s"
    left, parts = round(seconds), []
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def parse_retention(text: str) -> timedelta:
    """Read a duration as `parse_duration` does, or `forever`. Raises ValueError with the units."""
    return FOREVER if text.strip().lower() == NEVER_ENDS else parse_duration(text)


def parse_duration(text: str) -> timedelta:
    """Read a duration such as `7d`, `90min` or `1h 30m`; units are w, d, h, min or m, s. Raises ValueError with these units."""
    place, seconds = 0, 0.0
    part = re.compile(_PART)
    while found := part.match(text, place):
        place, seconds = found.end(), seconds + float(found[1]) * _SECONDS[found[2]]
    if not place or text[place:].strip():
        raise ValueError(f"{text!r:.100} is not a duration: use numbers with units (w, d, h, min, s), such as 7d or 1h30min")
    if not 0 < seconds <= LONGEST.total_seconds():
        raise ValueError(f"duration {text!r:.100} is out of range: use more than 0 and at most ten years")
    return timedelta(seconds=seconds)
