"""Charts of the last hour and day, from what processes reported by the minute: geometry, axes, and a sentence for each."""

from collections.abc import Callable, Iterator, Sequence
from math import ceil, floor, log10

from msgspec import Struct

from onceonly.model.minutes import MINUTE_MS, MINUTES, QUARTER_MS, QUARTERS, Span, WorkHistory
from onceonly_dashboard.charts import polylines
from onceonly_dashboard.pages import age, clock, duration, number

WIDTH, HEIGHT = 600, 160
TIMES = 4
"""Parts of the time axis. There is a time at each end of a part."""
_LONG_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


class TimeRange(Struct, frozen=True):
    """What a page shows: `count` spans of `step` milliseconds that have ended, the oldest first."""

    name: str
    title: str
    step: int
    count: int


HOUR = TimeRange("hour", "Last hour", MINUTE_MS, MINUTES)
DAY = TimeRange("day", "Last day", QUARTER_MS, QUARTERS)
RANGES = (HOUR, DAY)


class WorkRow(Struct, frozen=True, kw_only=True):
    """One span as numbers. Counts are None if no process reported, others if nothing is known.

    * `at`: its start, in milliseconds since 1970.
    * `oldest`: seconds. `p50`, `p99`: milliseconds.
    """

    at: int
    handled: int | None = None
    failed: int | None = None
    duplicates: int | None = None
    waiting: int | None = None
    oldest: float | None = None
    p50: float | None = None
    p99: float | None = None


class TimeLine(Struct, frozen=True, kw_only=True):
    """One line of a chart: the `points` of SVG polylines, one for each part without a gap, and points that stand alone."""

    name: str
    lines: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]


class TimeChart(Struct, frozen=True, kw_only=True):
    """One chart. `scale` are the labels of its value axis from the top, `times` those of its time axis from the left."""

    name: str
    title: str
    last: str
    label: str
    lines: tuple[TimeLine, ...]
    scale: tuple[str, ...]
    times: tuple[str, ...]


def rows_of(history: WorkHistory, range_: TimeRange, now: int) -> tuple[WorkRow, ...]:
    """Return the spans of a range that have ended, the oldest first. `now` is in milliseconds since 1970."""
    spans = history.quarters if range_ is DAY else history.minutes
    present = now // range_.step
    return tuple(_row(place * range_.step, spans.get(place)) for place in range(present - range_.count, present))


def _row(at: int, span: Span | None) -> WorkRow:
    if span is None:
        return WorkRow(at=at)
    oldest = 0 if span.oldest is None and span.waiting == 0 else span.oldest
    return WorkRow(
        at=at,
        handled=span.handled,
        failed=span.failed,
        duplicates=span.duplicates,
        waiting=span.waiting,
        oldest=None if oldest is None else oldest / 1000,
        p50=span.duration(0.5),
        p99=span.duration(0.99),
    )


def time_charts(rows: Sequence[WorkRow], range_: TimeRange) -> tuple[TimeChart, ...]:
    """Draw the charts of a range."""
    if not rows:
        return ()
    each = range_.step // MINUTE_MS
    charts = [
        _chart(
            name,
            title,
            rows,
            range_,
            series=(("", [_divided(getattr(row, name), each) for row in rows]),),
            write=number,
            last=f"{number(sum(getattr(row, name) or 0 for row in rows))} in total",
        )
        for name, title in _COUNTS
    ]
    waiting = [row.waiting for row in rows]
    oldest = [row.oldest for row in rows]
    charts.append(_chart("waiting", "Waiting messages", rows, range_, series=(("", waiting),), write=number))
    charts.append(_chart("oldest", "Longest wait", rows, range_, series=(("", oldest),), write=age, seconds=True))
    durations = tuple((f"p{part}", [_divided(getattr(row, f"p{part}"), 1000) for row in rows]) for part in (50, 99))
    charts.append(_chart("latency", "Duration of handlers", rows, range_, series=durations, write=_seconds, seconds=True))
    return tuple(charts)


_COUNTS = (
    ("handled", "Handled per minute"),
    ("failed", "Failed attempts per minute"),
    ("duplicates", "Duplicates per minute"),
)
_Series = Sequence[tuple[str, Sequence[float | None]]]


def _chart(  # noqa: PLR0913 - what it draws, by name
    name: str,
    title: str,
    rows: Sequence[WorkRow],
    range_: TimeRange,
    *,
    series: _Series,
    write: Callable[[float], str],
    last: str = "",
    seconds: bool = False,
) -> TimeChart:
    known = [value for _, values in series for value in values if value is not None]
    top = axis_end(max(known, default=0.0), seconds=seconds)
    newest = ", ".join(f"{key} {_text(values[-1], write)}".strip() for key, values in series)
    return TimeChart(
        name=name,
        title=title,
        last=last or newest,
        label=_sentence(series, write, rows, range_),
        lines=tuple(_line(key, values, top) for key, values in series),
        scale=(write(top), write(top / 2), "0"),
        times=tuple(clock(at) for at in _times(rows, range_)),
    )


def _line(name: str, values: Sequence[float | None], top: float) -> TimeLine:
    points = [
        None if value is None else (round(WIDTH * place / (len(values) - 1), 1), round(HEIGHT * (1 - value / top), 1))
        for place, value in enumerate(values)
    ]
    lines, dots = polylines(points)
    return TimeLine(name=name, lines=lines, dots=dots)


def _times(rows: Sequence[WorkRow], range_: TimeRange) -> Iterator[int]:
    first, last = rows[0].at, rows[-1].at + range_.step
    for part in range(TIMES + 1):
        yield first + (last - first) * part // TIMES


def _sentence(series: _Series, write: Callable[[float], str], rows: Sequence[WorkRow], range_: TimeRange) -> str:
    parts = []
    for key, values in series:
        known = [(value, row.at) for value, row in zip(values, rows, strict=True) if value is not None]
        start = f"{key}: " if key else ""
        if known:
            highest, at = max(known)
            parts.append(
                f"{start}between {write(min(known)[0])} and {write(highest)}, highest at {clock(at)} UTC, "
                f"{_text(values[-1], write)} at the end"
            )
        else:
            parts.append(f"{start}no value")
    return f"{range_.title} until {clock(rows[-1].at + range_.step)} UTC. {'. '.join(parts)}."


def axis_end(highest: float, *, seconds: bool = False) -> float:
    """Return the end of a value axis: 1, 2 or 5 times a power of ten, at least 1. Seconds: in units of time."""
    if seconds and highest > 1:
        return float(next((step for step in _LONG_STEPS if step >= highest), ceil(highest / 86400) * 86400))
    if highest <= 0:
        return 1.0
    power = 10.0 ** floor(log10(highest))
    end = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= highest * 0.999999)
    return max(end, 0.001) if seconds else max(end, 1.0)


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _seconds(value: float) -> str:
    return duration(round(value * 1_000_000))


def _text(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)
