"""What a call passes between the algorithm and an adapter: one wrapper for each port, and the observer where there is one."""

import asyncio
import sys
from collections import defaultdict
from inspect import iscoroutinefunction
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from onceonly.adapters.memory.run_markers import MemoryRunMarkers
from onceonly.adapters.memory.world import Live
from onceonly.config.worker import WorkerSettings
from onceonly.model.message import FailureKind, Message, Send
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.processes.counters import SharedCounters
from onceonly.runtime.worker.worker import Worker
from tests.runtime.harness import CallTally, ScriptedHandlers, SimulatedEndpoint, failing

PROBED = ("store", "fence", "pending", "handlers", "admission", "effects", "transport", "dead_letters", "run_markers")

Passed = defaultdict[str, set[tuple[str, ...]]]


class Probed:
    """An adapter that notes what each call by an algorithm passed on its way here."""

    def __init__(self, name: str, port: Any, passed: Passed) -> None:
        self._name, self._port, self._passed = name, port, passed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._note(name)
            return found(*arguments, **named)

        async def awaited(*arguments: Any, **named: Any) -> Any:
            self._note(name)
            answer = await found(*arguments, **named)
            return Probed("unit", answer, self._passed) if hasattr(answer, "abandon") else answer

        return awaited if iscoroutinefunction(found) else call

    def _note(self, name: str) -> None:
        passed: list[str] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith("onceonly.algorithms"):
                self._passed[f"{self._name}.{name}"].add(tuple(dict.fromkeys(passed)))
                return
            if module.startswith("onceonly.runtime"):
                passed.append(_owner(frame))
            frame = frame.f_back


def _owner(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    return frame.f_code.co_name if owner is None else type(owner).__name__


def _script(message: Message, _resources: object) -> None:
    if message.id == "rejected":
        raise failing("no such order", FailureKind.REJECTED)


@pytest.mark.parametrize("observer", [None, CallTally()], ids=["plain", "observed"])
async def test_a_call_passes_one_wrapper_of_its_port(observer: CallTally | None, tmp_path: Path) -> None:
    """In a worker with a supervisor; the observer's is a second one."""
    simulated = await SimulatedEndpoint(ScriptedHandlers(_script)).open("a", "b", "rejected")
    suspect = Message(id="alone", source="test", type="order", body=b"{}")
    await simulated.transport.send([Send(message=suspect, to="shop", alone=True)])
    whole, passed = simulated.ports._replace(run_markers=MemoryRunMarkers(Live(), "shop")), Passed(set)
    ports = whole._replace(**{name: Probed(name, getattr(whole, name), passed) for name in PROBED})
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        stop, settings = asyncio.Event(), WorkerSettings(wait=0.05, grace=5.0)
        seen = observed(ports, observer)
        worker = Worker(seen, settings, environment=simulated.environment, counters=counters.row(0))
        working = asyncio.create_task(worker.run(stop))
        await simulated.settled()
        stop.set()
        await working
    wrappers = {call: max(each, key=len) for call, each in passed.items()}
    most = 1 if observer is None else 2
    assert {call: each for call, each in wrappers.items() if len(each) > most} == {}
    assert {"store.begin", "store.forget", "unit.commit", "unit.abandon", "fence.fence", "handlers.handle"} < wrappers.keys()
    assert {"transport.send", "transport.ack", "dead_letters.add", "run_markers.begin", "run_markers.finish"} < wrappers.keys()
    assert wrappers["store.keeps"] == wrappers["store.unit_key"] == ()
