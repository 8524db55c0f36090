"""Parts of the world in the form in which equal ones are equal."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from onceonly.model.token import TOKEN, Token
from onceonly_verify.workload import HOST_DEAD, SINKS
from onceonly_verify.workload_ports import STARTS
from onceonly_verify.world import Bounds, BrokerPart

_COLLECTED = SINKS | {HOST_DEAD}


def roll_back(store: Any, receipt: Any) -> tuple[Any, None]:
    """End the units of a run whose process died; those cut adrift have another name and may still land."""
    if not getattr(store, "open", ()):
        return store, None  # nothing is held, or nothing ever is: documents know no units
    return replace(store, open=tuple(unit for unit in store.open if unit.token[0] != receipt)), None


def open_runs(store: Any) -> tuple[Any, ...]:
    """Return the receipts of the runs that have units open. A unit that was cut adrift does not belong to a run."""
    tokens = (unit.token for unit in getattr(store, "open", ()))
    return tuple(sorted({token[0] for token in tokens if hasattr(token[0], "times")}))


def recorded_runs(run_markers: Any) -> tuple[Any, ...]:
    """Return the receipts of the runs that are recorded as being in progress."""
    return tuple(sorted({run.token[0] for run in run_markers.runs if run.until}))


class EarlyEnd(NamedTuple):
    """What ends while its worker is at work: the bound that it spends, its name, the run, and the world's part afterwards."""

    bound: str
    what: str
    receipt: Any
    part: Any


def early_ends(left: Bounds, name: str, part: Any) -> Iterator[EarlyEnd]:
    """List what may end in this part of the world.

    A database ends the unit of a process that is silent. A run marker that is old is taken for that of a dead process.
    """
    if left.rollbacks and name != STARTS:
        yield from (EarlyEnd("rollbacks", "unit", receipt, roll_back(part, receipt)[0]) for receipt in open_runs(part))
    if left.lapses and name == STARTS:
        for receipt in recorded_runs(part):
            after, _ = lose(part, receipt, running=None, supervised=False)
            yield EarlyEnd("lapses", "run marker", receipt, after)


def lose(run_markers: Any, receipt: Any, running: tuple[bytes, int] | None, supervised: bool) -> tuple[Any, None]:  # noqa: FBT001
    """End a process: its recorded runs count as dead, and so does the handler that was `running`, if `supervised`."""
    mine = [run for run in run_markers.runs if run.token[0] == receipt]
    lost = {run.key for run in mine} | ({running[0]} if running else set())
    if not lost:
        return run_markers, None
    before = dict(run_markers.deaths)
    deaths = tuple(sorted((before | {key: before.get(key, 0) + 1 for key in lost}).items()))
    runs = tuple(replace(run, until=0) if run in mine else run for run in run_markers.runs)
    seen = tuple(sorted({*run_markers.seen, *((running,) if running and supervised else ())}))
    return replace(run_markers, runs=runs, seen=seen, deaths=deaths), None


def in_order(store: Any) -> Any:
    """Sort what has no order, so that equal stores are equal; what is beside the stores has none to sort."""
    if not hasattr(store, "notes"):
        return store
    kept = {name: tuple(sorted(found, key=repr)) for name in ("keys", "rows") if (found := getattr(store, name, ()))}
    return replace(
        store,
        **kept,
        records=tuple(sorted(store.records, key=repr)),
        notes=tuple(sorted(store.notes)),
        open=tuple(sorted(store.open, key=repr)),
    )


def drained(before: BrokerPart, broker: Any) -> BrokerPart:
    """Have the sink take what was sent to it; its messages need no numbers."""
    kept = tuple(sorted((entry for entry in broker.entries if entry.queue not in _COLLECTED), key=lambda entry: entry.number))
    if len(kept) == len(broker.entries):
        return BrokerPart(replace(broker, entries=kept), before.sunk, before.tokens)
    taken = [(dict(e.headers), e.body.decode(), e.queue) for e in broker.entries if e.queue in _COLLECTED]
    sunk = before.sunk | {(headers["ce-id"], text, queue) for headers, text, queue in taken}
    tokens = before.tokens | {Token(headers[f"ce-{TOKEN}"], queue) for headers, _, queue in taken if f"ce-{TOKEN}" in headers}
    last = max((before.broker.last, *(entry.number for entry in kept)))
    return BrokerPart(replace(broker, entries=kept, last=last), sunk, tokens)
