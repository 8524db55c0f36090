"""The overview of all endpoints, and the page of one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import asdict

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.wording import in_words
from onceonly.ports.dead_letters import DeadLetters, Filter, LetterIndex, ReadsNewest
from onceonly_dashboard.charts import Chart, chart
from onceonly_dashboard.endpoint_probes import COUNTED, MOST, EndpointProbes, StoreState
from onceonly_dashboard.page_request import PageContent, PageRequest, PageServices
from onceonly_dashboard.probes import Probe
from onceonly_dashboard.redaction import Redact, redacted
from onceonly_dashboard.state import EndpointFinding, EndpointLevel, findings_of, level_of
from onceonly_dashboard.time_charts import HOUR, RANGES, TimeChart, TimeRange, WorkRow, rows_of, time_charts
from onceonly_dashboard.views.settings import risks_of

EVERY_SECONDS = 5
NEWEST = 5
SEARCHED = 50
"""Of the dead letters of all endpoints that share documents, this number of the newest is read."""
NOT_READ = "not read yet"


async def overview(request: PageRequest, services: PageServices) -> PageContent:
    """List the endpoints with their state and numbers."""
    rows = [_row(probes, request.now) for probes in services.endpoints.values()]
    attention = sum(row["state"] in (EndpointLevel.DEGRADED, EndpointLevel.FAILING) for row in rows)
    return PageContent(
        template="overview.html",
        title="Overview",
        data={"endpoints": rows, "attention": attention, "since": services.sampler.since},
        every=EVERY_SECONDS,
    )


async def endpoint(request: PageRequest, services: PageServices) -> PageContent:
    """Show one endpoint: numbers as lines, what needs attention, its handlers, and the newest errors."""
    probes = services.endpoint(request.path_params["name"])
    row = _row(probes, request.now)
    errors, errors_unknown = await services.shared(
        request, ("errors", probes.name), partial(_newest_errors, probes, services.options.redact), EVERY_SECONDS
    )
    charts = await services.shared(request, ("charts", probes.name), partial(_charts, probes), EVERY_SECONDS)
    range_ = next((each for each in RANGES if each.name == request.query_value("range")), HOUR)
    work, work_charts = await services.shared(
        request, ("work", probes.name, range_.name), partial(_work, probes, range_, request.now), EVERY_SECONDS
    )
    return PageContent(
        template="endpoint.html",
        title=probes.name,
        data={
            "endpoint": row,
            "since": services.sampler.since,
            "samples": {name: _samples(probe) for name, probe in _probes_by_name(probes).items()},
            "handles": {"events": probes.topology.events, "commands": probes.topology.commands},
            "janitor": _tasks(probes),
            "processes": _processes(probes),
            "processes_unknown": _why_processes_unknown(probes),
            "range": range_.name,
            "work": [asdict(each) for each in work],
            "errors": errors,
            "errors_unknown": errors_unknown,
            "risks": len([*risks_of(probes.settings)]),
        },
        view={"charts": charts, "work_charts": work_charts, "ranges": RANGES},
        every=EVERY_SECONDS,
    )


def _row(probes: EndpointProbes, now: int) -> dict[str, Any]:
    findings = findings_of(probes, now)
    dead = probes.letters.value
    return {
        "name": probes.name,
        "state": level_of(probes, findings),
        **_queue_cells(probes, now),
        **_store_cells(probes, now),
        "dead": _cell(probes.letters, dead, now, text=_more_than(MOST, dead)),
        "findings": [_finding(each, now) for each in findings],
    }


def _cell(probe: Probe[Any, Any], value: object, now: int, *, why: str = "", text: str = "") -> dict[str, object]:
    """Describe a number: its value, None if it is unknown with the reason; `stale` is its age in seconds after an outage."""
    cell: dict[str, object] = {"value": value}
    if text:
        cell["text"] = text
    if value is None:
        cell["why"] = why or (NOT_READ if probe.outage is None else "cannot be read")
    if probe.outage is not None and probe.at:
        cell["stale"] = max(0, now - probe.at) // 1000
    return cell


def _queue_cells(probes: EndpointProbes, now: int) -> dict[str, dict[str, object]]:
    state = probes.queue.value
    depth = None if state is None else state.depth
    values: dict[str, int | None] = {name: getattr(depth, name, None) for name in ("waiting", "held", "delayed")}
    why = "" if state is None else "it has no queue yet"
    return {name: _cell(probes.queue, value, now, why=why, text=_more_than(MOST, value)) for name, value in values.items()}


def _store_cells(probes: EndpointProbes, now: int) -> dict[str, dict[str, object]]:
    state, cell = probes.store.value, partial(_cell, probes.store, now=now)
    if state is None:
        return {name: cell(None) for name in ("rate", "pending", "oldest", "janitor")}
    janitor, journal = _janitor(state, now), state.journal
    ago = "" if journal is None or janitor is None else f"{janitor}, {in_words(max(0, now - journal.at) // 1000)} ago"
    unknown = (
        "this store cannot be searched"
        if probes.settings.plan.records
        else f"no records with deduplication={type(probes.settings.deduplication).__name__}()"
    )
    return {
        "rate": cell(None if state.rate is None else round(state.rate, 1), why=_why_no_rate(probes, state)),
        "pending": cell(state.pending, why=unknown, text=_more_than(COUNTED, state.pending)),
        "oldest": cell(
            state.oldest,
            why="nothing is pending" if state.pending == 0 else unknown,
            text="" if state.oldest is None else in_words(state.oldest),
        ),
        "janitor": cell(janitor, why="nothing to clean up", text=ago),
    }


def _why_no_rate(probes: EndpointProbes, state: StoreState) -> str:
    if state.processes is None:
        return _why_no_processes(probes)
    runs = any(not each.is_stale for each in state.processes)
    return "its processes have reported once, and report again within 10 seconds" if runs else "no process of it runs"


def _janitor(state: StoreState, now: int) -> str | None:
    if not state.has_janitor:
        return None
    if state.journal is None:
        return "never"
    return "failing" if state.journal.is_failing() else "overdue" if state.journal.overdue(now) else "ok"


def _why_no_processes(probes: EndpointProbes) -> str:
    if probes.workers:
        return "the addresses in workers= tell no counts" if probes.processes is not None else "no address in workers= answers"
    return "this store does not know the processes" if probes.settings.presence else "presence=False: no process reports"


def _why_processes_unknown(probes: EndpointProbes) -> str:
    """Return why it is unknown which processes run, or empty."""
    state = probes.store.value
    if state is None:
        return NOT_READ if probes.store.outage is None else "the store cannot be read"
    return "" if probes.processes is not None else _why_no_processes(probes)


def _processes(probes: EndpointProbes) -> list[dict[str, object]]:
    return [
        {
            "process": f"{each.report.host}:{each.report.pid}",
            "seen_seconds": round(each.age),
            "is_stale": each.is_stale,
            "version": each.report.version,
            "counters": dict(each.report.counters),
            "troubles": list(each.report.troubles),
        }
        for each in probes.processes or ()
    ]


def _more_than(limit: int, value: int | None) -> str:
    """Return how a number beyond a limit is shown, or ""."""
    return f"> {limit:,}" if value is not None and value > limit else ""


def _finding(finding: EndpointFinding, now: int) -> dict[str, object]:
    seconds = max(0, now - finding.since) // 1000 if finding.since else None
    return {**asdict(finding), "since": finding.since or None, "seconds": seconds}


def _probes_by_name(probes: EndpointProbes) -> dict[str, Probe[Any, Any]]:
    return {"queue": probes.queue, "store": probes.store, "letters": probes.letters}


def _samples(probe: Probe[Any, Any]) -> list[dict[str, object]]:
    return [{"at": sample.at, **sample.numbers} for sample in probe.samples]


async def _charts(probes: EndpointProbes) -> list[Chart]:
    """Draw the lines. All viewers share them, since they cost more than the rest of the page."""
    queue, store, letters = (list(probe.samples) for probe in _probes_by_name(probes).values())
    charts = [
        chart("rate", "Handled per second", store),
        chart("waiting", "Waiting", queue),
        chart("held", "Held", queue),
        chart("delayed", "Delayed", queue),
        chart("pending", "Pending records", store),
        chart("oldest", "Oldest pending", store, unit="s"),
        chart("dead", "Dead letters", letters),
    ]
    if not probes.settings.store_plan.is_searchable:
        return [each for each in charts if each.name not in ("rate", "pending", "oldest")]
    return charts


async def _work(probes: EndpointProbes, range_: TimeRange, now: int) -> tuple[tuple[WorkRow, ...], tuple[TimeChart, ...]]:
    """Draw what processes reported by the minute. Nothing if it is unknown. All viewers share it."""
    history = probes.work
    rows = () if history is None else rows_of(history, range_, now)
    return rows, time_charts(rows, range_)


def _tasks(probes: EndpointProbes) -> list[dict[str, object]]:
    state = probes.store.value
    if state is None or state.journal is None:
        return []
    return [
        {"name": name, "at": run.at, "took": run.took, "count": run.count, "reason": run.reason}
        for name, run in sorted(state.journal.tasks.items())
    ]


async def _newest_errors(probes: EndpointProbes, redact: Redact | None) -> tuple[list[dict[str, object]], str]:
    """Return the last dead letters that were stored, and why there are none to show."""
    if probes.letters.outage is not None:
        return [], probes.letters.outage.reason
    async with probes.open_letters() as letters:
        found = await _newest_letters(letters, Filter(endpoint=probes.name))
    views = [(each.key, redacted(each, redact)) for each in found]
    return [{"key": key, "type": _type(view), "reason": view.reason, "at": view.at} for key, view in views], ""


async def _newest_letters(letters: DeadLetters, chosen: Filter) -> Sequence[DeadLetter]:
    if isinstance(letters, LetterIndex):
        return [each.letter for each in await letters.placed(chosen, limit=NEWEST, newest=True)]
    if isinstance(letters, ReadsNewest):
        return (await letters.newest(chosen, SEARCHED))[:NEWEST]
    return await letters.page(chosen, limit=NEWEST)


def _type(letter: DeadLetter) -> str:
    return letter.message.type if letter.message else ""
