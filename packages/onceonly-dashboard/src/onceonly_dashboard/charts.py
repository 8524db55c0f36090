"""Sparklines: the geometry of small line charts, a sentence for each, and the rows of its table."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from onceonly_dashboard.pages import age, clock, number
from onceonly_dashboard.probes import Sample

WIDTH, HEIGHT, MARGIN = 240, 48, 3
MOST_POINTS = 120
"""Points that are drawn: two pixels for each. The highest of those that share one is drawn."""
ROWS = 24


class Chart(Struct, frozen=True, kw_only=True):
    """One sparkline. `lines` are the `points` of SVG polylines: one for each part without a gap.

    `last` is the newest value as text, "-" if there is none. `rows` are pairs of time and value, the newest first.
    """

    name: str
    title: str
    last: str
    label: str
    lines: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    top: str
    rows: tuple[tuple[str, str], ...]


def chart(name: str, title: str, samples: Sequence[Sample], *, unit: str = "") -> Chart:
    """Draw the numbers of this name. A sample without it is a gap. `unit` is "s" for ages."""
    write: Callable[[float], str] = age if unit == "s" else number
    points = _merged([(sample.at, sample.numbers.get(name)) for sample in samples])
    values = [value for _, value in points if value is not None]
    last = points[-1][1] if points else None
    since = clock(points[0][0]) if points else ""
    top = max(values, default=0.0)
    lines, dots = polylines(_places(points, top))
    return Chart(
        name=name,
        title=title,
        last="-" if last is None else write(last),
        label=f"{title}: {_sentence(values, last, since, write)}",
        lines=lines,
        dots=dots,
        top=write(top) if values else "",
        rows=tuple((clock(at), "-" if value is None else write(value)) for at, value in _selected(points, ROWS)),
    )


def _sentence(values: Sequence[float], last: float | None, since: str, write: Callable[[float], str]) -> str:
    if not values:
        return "no value was read."
    now = "not known now" if last is None else f"{write(last)} now"
    return f"{now}, between {write(min(values))} and {write(max(values))} since {since} UTC."


def _merged(points: Sequence[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """Merge neighbours until at most `MOST_POINTS` are left. The highest value stays; a gap stays where all are gaps."""
    step = -(-len(points) // MOST_POINTS) or 1
    merged: list[tuple[int, float | None]] = []
    for start in range(0, len(points), step):
        some = points[start : start + step]
        merged.append((some[-1][0], max((value for _, value in some if value is not None), default=None)))
    if merged and points[-1][1] is None:
        merged[-1] = points[-1]
    return merged


def polylines(points: Sequence[tuple[float, float] | None]) -> tuple[tuple[str, ...], tuple[tuple[float, float], ...]]:
    """Return the `points` of an SVG polyline for each part without a gap, and the points that stand alone. None is a gap."""
    found: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            found.append([])
        else:
            found[-1].append(point)
    lines = tuple(" ".join(f"{x:g},{y:g}" for x, y in line) for line in found if len(line) > 1)
    return lines, tuple(line[0] for line in found if len(line) == 1)


def _places(points: Sequence[tuple[int, float | None]], top: float) -> list[tuple[float, float] | None]:
    if not points:
        return []
    first, last = points[0][0], points[-1][0]
    found: list[tuple[float, float] | None] = []
    for at, value in points:
        if value is None:
            found.append(None)
            continue
        x = WIDTH - MARGIN if last == first else MARGIN + (WIDTH - 2 * MARGIN) * (at - first) / (last - first)
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value / top if top else 0)
        found.append((round(x, 1), round(y, 1)))
    return found


def _selected(points: Sequence[tuple[int, float | None]], count: int) -> list[tuple[int, float | None]]:
    """Return at most `count` points, the newest first, at equal distances."""
    step = -(-len(points) // count) or 1
    return list(reversed(points))[::step]
