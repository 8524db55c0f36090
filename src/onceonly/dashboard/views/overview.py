"""The overview of all endpoints, and the page of one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from onceonly.dashboard.asking import Ask
from onceonly.dashboard.charts import Chart, chart
from onceonly.dashboard.probes import Probe
from onceonly.dashboard.redaction import Redact, redacted
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.risks import risks_of
from onceonly.dashboard.state import Finding, Level, findings_of, level_of
from onceonly.dashboard.watching import COUNTED, MOST, WatchedEndpoint
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.durations import in_words
from onceonly.ports.dead_letters import DeadLetters, Filter, LetterIndex, ReadsNewest

EVERY_SECONDS = 5
NEWEST = 5
SEARCHED = 50
"""Of the dead letters of all endpoints that share documents, this number of the newest is read."""
NOT_READ = "not read yet"


async def overview(ask: Ask) -> Page:
    """List the endpoints with their state and numbers."""
    rows = [_row(watched, ask.now) for watched in ask.dashboard.watched.values()]
    attention = sum(row["state"] in (Level.DEGRADED, Level.FAILING) for row in rows)
    return Page(
        template="overview.html",
        title="Overview",
        data={"endpoints": rows, "attention": attention, "since": ask.dashboard.sampler.since},
        every=EVERY_SECONDS,
    )


async def endpoint(ask: Ask) -> Page:
    """Show one endpoint: numbers as lines, what needs attention, its handlers, and the newest errors."""
    watched = ask.watched()
    row = _row(watched, ask.now)
    errors, errors_unknown = await ask.shared(
        ("errors", watched.name), partial(_newest_errors, watched, ask.dashboard.redact), EVERY_SECONDS
    )
    charts = await ask.shared(("charts", watched.name), partial(_charts, watched), EVERY_SECONDS)
    return Page(
        template="endpoint.html",
        title=watched.name,
        data={
            "endpoint": row,
            "since": ask.dashboard.sampler.since,
            "samples": {name: _samples(probe) for name, probe in _probes(watched).items()},
            "handles": {"events": watched.topology.events, "commands": watched.topology.commands},
            "janitor": _tasks(watched),
            "processes": _processes(watched),
            "processes_unknown": _why_processes_unknown(watched),
            "errors": errors,
            "errors_unknown": errors_unknown,
            "risks": len(risks_of(watched.settings)),
        },
        view={"charts": charts},
        every=EVERY_SECONDS,
    )


def _row(watched: WatchedEndpoint, now: int) -> dict[str, Any]:
    findings = findings_of(watched, now)
    level = level_of(watched, findings)
    return {
        "name": watched.name,
        "state": level,
        "rate": _rate_cell(watched, now),
        "waiting": _queue_cell(watched, "waiting", now),
        "held": _queue_cell(watched, "held", now),
        "delayed": _queue_cell(watched, "delayed", now),
        "pending": _pending_cell(watched, now),
        "oldest": _oldest_cell(watched, now),
        "dead": _dead_cell(watched, now),
        "janitor": _janitor_cell(watched, now),
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


def _queue_cell(watched: WatchedEndpoint, name: str, now: int) -> dict[str, object]:
    state = watched.queue.value
    if state is None:
        return _cell(watched.queue, None, now)
    value = None if state.depth is None else getattr(state.depth, name)
    return _cell(watched.queue, value, now, why="it has no queue yet", text=_more_than(MOST, value))


def _rate_cell(watched: WatchedEndpoint, now: int) -> dict[str, object]:
    state = watched.store.value
    if state is None:
        return _cell(watched.store, None, now)
    if state.processes is None:
        return _cell(watched.store, None, now, why=_why_no_processes(watched))
    runs = any(not each.is_stale for each in state.processes)
    why = "its processes have reported once, and report again within 10 seconds" if runs else "no process of it runs"
    return _cell(watched.store, None if state.rate is None else round(state.rate, 1), now, why=why)


def _why_no_processes(watched: WatchedEndpoint) -> str:
    if watched.workers:
        return "the addresses in workers= tell no counts" if watched.processes is not None else "no address in workers= answers"
    return "this store does not know the processes" if watched.settings.presence else "presence=False: no process reports"


def _why_processes_unknown(watched: WatchedEndpoint) -> str:
    """Return why it is unknown which processes run, or empty."""
    state = watched.store.value
    if state is None:
        return NOT_READ if watched.store.outage is None else "the store cannot be read"
    return "" if watched.processes is not None else _why_no_processes(watched)


def _processes(watched: WatchedEndpoint) -> list[dict[str, object]]:
    return [
        {
            "process": f"{each.report.host}:{each.report.pid}",
            "seen_seconds": round(each.age),
            "is_stale": each.is_stale,
            "version": each.report.version,
            "counters": dict(each.report.counters),
            "troubles": list(each.report.troubles),
        }
        for each in watched.processes or ()
    ]


def _pending_cell(watched: WatchedEndpoint, now: int) -> dict[str, object]:
    state = watched.store.value
    if state is None:
        return _cell(watched.store, None, now)
    return _cell(watched.store, state.pending, now, why=_why_not_pending(watched), text=_more_than(COUNTED, state.pending))


def _oldest_cell(watched: WatchedEndpoint, now: int) -> dict[str, object]:
    state = watched.store.value
    if state is None:
        return _cell(watched.store, None, now)
    why = "nothing is pending" if state.pending == 0 else _why_not_pending(watched)
    text = in_words(state.oldest) if state.oldest is not None else ""
    return _cell(watched.store, state.oldest, now, why=why, text=text)


def _why_not_pending(watched: WatchedEndpoint) -> str:
    return "this store cannot be searched" if watched.settings.plan.records else "no records with deduplication=Off()"


def _dead_cell(watched: WatchedEndpoint, now: int) -> dict[str, object]:
    return _cell(watched.letters, watched.letters.value, now, text=_more_than(MOST, watched.letters.value))


def _more_than(limit: int, value: int | None) -> str:
    """Return how a number beyond a limit is shown, or ""."""
    return f"> {limit:,}" if value is not None and value > limit else ""


def _janitor_cell(watched: WatchedEndpoint, now: int) -> dict[str, object]:
    state = watched.store.value
    if state is None:
        return _cell(watched.store, None, now)
    if not state.has_janitor:
        return _cell(watched.store, None, now, why="nothing to clean up")
    if state.journal is None:
        return _cell(watched.store, "never", now)
    journal = state.journal
    word = "failing" if journal.is_failing() else "overdue" if journal.overdue(now) else "ok"
    return _cell(watched.store, word, now, text=f"{word}, {in_words(max(0, now - journal.at) // 1000)} ago")


def _finding(finding: Finding, now: int) -> dict[str, object]:
    return {
        "part": finding.part,
        "level": finding.level,
        "reason": finding.reason,
        "advice": finding.advice,
        "since": finding.since or None,
        "seconds": max(0, now - finding.since) // 1000 if finding.since else None,
        "link": finding.link,
    }


def _probes(watched: WatchedEndpoint) -> dict[str, Probe[Any, Any]]:
    return {"queue": watched.queue, "store": watched.store, "letters": watched.letters}


def _samples(probe: Probe[Any, Any]) -> list[dict[str, object]]:
    return [{"at": sample.at, **sample.numbers} for sample in probe.samples]


async def _charts(watched: WatchedEndpoint) -> list[Chart]:
    """Draw the lines. All viewers share them, since they cost more than the rest of the page."""
    queue, store, letters = (list(probe.samples) for probe in _probes(watched).values())
    charts = [
        chart("rate", "Handled per second", store),
        chart("waiting", "Waiting", queue),
        chart("held", "Held", queue),
        chart("delayed", "Delayed", queue),
        chart("pending", "Pending records", store),
        chart("oldest", "Oldest pending", store, unit="s"),
        chart("dead", "Dead letters", letters),
    ]
    if watched.settings.places.store.keeps_documents:
        return [each for each in charts if each.name not in ("rate", "pending", "oldest")]
    return charts


def _tasks(watched: WatchedEndpoint) -> list[dict[str, object]]:
    state = watched.store.value
    if state is None or state.journal is None:
        return []
    return [
        {"name": name, "at": run.at, "took": run.took, "count": run.count, "reason": run.reason}
        for name, run in sorted(state.journal.chores.items())
    ]


async def _newest_errors(watched: WatchedEndpoint, redact: Redact | None) -> tuple[list[dict[str, object]], str]:
    """Return the last dead letters that were stored, and why there are none to show."""
    if watched.letters.outage is not None:
        return [], watched.letters.outage.reason
    async with watched.open_letters() as letters:
        found = await _newest_letters(letters, Filter(endpoint=watched.name))
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
