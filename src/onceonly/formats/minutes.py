"""A history of work among the counters of a process, which are stored as JSON with whole numbers.

Earlier versions read these counters as names and numbers. So each span is a name, with the number 0:

    m29412345 h12 f1 d3 w40 o2500 4:10 6:2

`m` or `q` and the number of the minute or quarter, then handled, failed, duplicates, waiting, oldest in milliseconds, and how
many runs of handlers are in each bucket of durations. What is zero or unknown is left out, but for `w` and `o`.
"""

import re
from collections.abc import Iterator, Mapping

from onceonly.model.minutes import Span, WorkHistory

_NUMBER = re.compile(r"[0-9]{1,12}")
_FIELDS = {"h": "handled", "f": "failed", "d": "duplicates", "w": "waiting", "o": "oldest"}
_LEVELS = {"m": "minutes", "q": "quarters"}


def with_history(counters: Mapping[str, int], history: WorkHistory) -> dict[str, int]:
    """Return the counters and the spans of a history."""
    return {**counters, **dict.fromkeys(_names(history), 0)}


def split_history(stored: Mapping[str, int]) -> tuple[dict[str, int], WorkHistory]:
    """Return the counters and the history that were stored together. A span that cannot be read is left out."""
    counters: dict[str, int] = {}
    levels: dict[str, dict[int, Span]] = {name: {} for name in _LEVELS.values()}
    for name, number in stored.items():
        level = _LEVELS.get(name[:1])
        first, *fields = name.split(" ")
        if level is None or not _NUMBER.fullmatch(first, 1):
            counters[name] = number
        elif (span := _span(fields)) is not None:
            levels[level][int(first[1:])] = span
    return counters, WorkHistory(**levels)


def _names(history: WorkHistory) -> Iterator[str]:
    for letter, level in _LEVELS.items():
        for number, span in getattr(history, level).items():
            yield " ".join((f"{letter}{number}", *_parts(span)))


def _parts(span: Span) -> Iterator[str]:
    for letter, name in _FIELDS.items():
        value = getattr(span, name)
        if value or (value == 0 and letter in "wo"):
            yield f"{letter}{value}"
    for bucket, count in span.runs.items():
        yield f"{bucket}:{count}"


def _span(fields: list[str]) -> Span | None:
    """Read the fields of a span. Those of a later version, with other letters, are ignored."""
    values: dict[str, int] = {}
    runs: dict[int, int] = {}
    try:
        for field in fields:
            bucket, colon, count = field.partition(":")
            if colon:
                runs[int(bucket)] = int(count)
            elif name := _FIELDS.get(field[0]):
                values[name] = int(field[1:])
    except (ValueError, IndexError):
        return None
    return Span(**values, runs=runs)
