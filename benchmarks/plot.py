"""The picture of a run: messages a second of every row, and how cost grows."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.growth import DISTANT, PARALLEL, STORED
from benchmarks.results import Results, spread
from benchmarks.rows import BY_NAME, POSTGRESQL, RABBITMQ, SQLITE

OWN, OTHERS, BY_HAND, LIMIT = "#0f766e", "#94a3b8", "#c2a878", "#475569"
INK, FAINT = "#1e293b", "#e2e8f0"
LINES = {"onceonly_orm": OWN, "outbox_orm": "#b45309", "at_least_once_orm": "#64748b"}
SIZE, SIZE_WITHOUT_GROWTH = (13.0, 10.5), (13.0, 7.0)

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "figure.titlesize": 13,
    "figure.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "benchmarks",
}


def draw(results: Results, file: Path) -> None:
    """Write a PNG. Rows that were not measured are not there."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=SIZE if results.growth else SIZE_WITHOUT_GROWTH, layout="constrained")
        upper: Any = figure
        if results.growth:
            parts: Any = figure.subfigures(2, 1, height_ratios=(2.3, 1))
            upper, lower = parts
            _lines(lower, results)
        _bars(upper, results)
        figure.savefig(file, dpi=140)


def _bars(figure: Any, results: Results) -> None:
    figure.suptitle(_title(results), x=0.01, ha="left")
    grid = figure.add_gridspec(3, 2, width_ratios=(1.7, 1), height_ratios=(1.25, 1, 1.4))
    places = {RABBITMQ: grid[:, 0], POSTGRESQL: grid[0, 1], SQLITE: grid[1, 1]}
    _legend(figure.add_subplot(grid[2, 1]))
    for backend, place in places.items():
        rows = [(name, it) for name, it in results.rows.items() if it.backend == backend and it.samples]
        if rows:
            _bar(figure.add_subplot(place), backend, rows)


def _bar(axes: Any, backend: str, rows: list[tuple[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: row[1].spread().median)
    spreads = [measured.spread() for _, measured in rows]
    medians = [it.median for it in spreads]
    errors = [[it.median - it.low for it in spreads], [it.high - it.median for it in spreads]]
    titles = [BY_NAME[name].title for name, _ in rows]
    axes.barh(titles, medians, color=[_colour(name) for name, _ in rows], height=0.68)
    axes.errorbar(medians, titles, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5, alpha=0.55)
    edge = max(it.high for it in spreads)
    for number, it in enumerate(spreads):
        axes.text(it.high + edge * 0.015, number, f"{it.median:,.0f}", va="center", fontsize=9)
    axes.set_xlim(0, edge * 1.14)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_title(backend)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="x", color=FAINT)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def _legend(axes: Any) -> None:
    """Say what the colours and the thin lines are."""
    axes.axis("off")
    meanings = {
        OWN: "onceonly",
        BY_HAND: "written by hand, in batches",
        OTHERS: "other libraries",
        LIMIT: "the machine's limit, in C",
    }
    handles: list[Any] = [Patch(color=colour, label=label) for colour, label in meanings.items()]
    handles.append(Line2D([], [], color=INK, alpha=0.55, lw=1, label="least to greatest of all rounds"))
    axes.legend(handles=handles, frameon=False, loc="upper left")


def _title(results: Results) -> str:
    machine = results.machine
    load = f"load {machine.load_before} to {machine.load_after}"
    return f"Messages a second, one process: {results.date}, {machine.cores} cores, {load}, {results.rounds} rounds"


def _lines(figure: Any, results: Results) -> None:
    panels = figure.subplots(1, 3, sharey=True)
    for axes, axis in zip(panels, (STORED, PARALLEL, DISTANT), strict=True):
        for name, colour in LINES.items():
            points = [point for point in results.growth if point.axis == axis and point.row == name]
            values = [f"{point.value:,.0f}" for point in points]
            spreads = [spread(point.rates) for point in points]
            axes.plot(values, [it.median for it in spreads], color=colour, marker="o", label=BY_NAME[name].title)
            axes.fill_between(values, [it.low for it in spreads], [it.high for it in spreads], color=colour, alpha=0.15, lw=0)
        axes.set_title(axis)
        axes.grid(axis="y", color=FAINT)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
    panels[0].set_ylim(bottom=0)  # behind all of them: it freezes the top
    panels[0].set_ylabel("messages a second")
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LINES), frameon=False)


def _colour(name: str) -> str:
    row = BY_NAME[name]
    if row.is_own:
        return OWN
    return {"batches": BY_HAND, "limit": LIMIT}.get(row.module, OTHERS)
