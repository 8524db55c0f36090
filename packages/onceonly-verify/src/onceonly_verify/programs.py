"""The code under check: the shipping modules themselves, or a fresh set of them with changes applied."""

import builtins
import importlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from onceonly_verify.mutations import CodeChange, DoesNotApply, mutated

MODULES = {
    "onceonly.model.identity": "identity",
    "onceonly.model.retry": "retry",
    "onceonly.model.retention": "",
    "onceonly.algorithms.admission": "admission",
    "onceonly.algorithms.remote_call": "",
    "onceonly.algorithms.effects": "effects",
    "onceonly.algorithms.third_party": "third_party",
    "onceonly.algorithms.intake": "",
    "onceonly.algorithms.outbox": "",
    "onceonly.algorithms.relay": "relay",
    "onceonly.algorithms.control": "",
    "onceonly.algorithms.transaction": "transaction",
    "onceonly.algorithms.remote_execution": "execution",
    "onceonly.algorithms.blame": "",
    "onceonly.algorithms.settlement": "",
    "onceonly.algorithms.deaths": "",
    "onceonly.algorithms.delivery": "delivery",
    "onceonly.algorithms.sweeper": "sweeper",
    "onceonly.adapters.memory.store": "stores",
    "onceonly_verify.memory_ports.register": "stored_rows",
    "onceonly.adapters.memory.run_markers": "run_markers",
    "onceonly.adapters.memory.transactions": "transactions",
    "onceonly_verify.memory_ports.ring": "ring",
    "onceonly_verify.memory_ports.rings": "rings",
    "onceonly_verify.memory_ports.database": "database",
    "onceonly_verify.memory_ports.dedup": "dedup",
    "onceonly_verify.memory_ports.tokens": "tokens",
    "onceonly.adapters.memory.artifacts": "artifacts",
    "onceonly_verify.memory_ports.database_transactions": "database_transactions",
    "onceonly.adapters.memory.remote_requests": "remote_requests",
    "onceonly_verify.memory_ports.remote": "remote",
    "onceonly_verify.memory_ports.third_party": "memory_third_party",
    "onceonly.adapters.memory.documents": "memory_documents",
    "onceonly.documents.compare_and_set": "",
    "onceonly.documents.recent": "",
    "onceonly.documents.application": "application",
    "onceonly.documents.retention": "retention",
    "onceonly.documents.store": "documents",
    "onceonly.documents.pending": "document_pending",
    "onceonly.documents.register": "register",
    "onceonly.documents.transactions": "document_transactions",
    "onceonly.documents.dedup": "marks",
    "onceonly.adapters.memory.transport": "transports",
    "onceonly.hosted.earlier_deliveries": "",
    "onceonly.hosted.transport": "hosted_transport",
    "onceonly.hosted.run_markers": "hosted_run_markers",
    "onceonly.hosted.calls": "hosted_calls",
    "onceonly_verify.memory_ports.host": "host",
    "onceonly_verify.memory_ports.session": "session",
    "onceonly.runtime.processes.counters": "counters",
    "onceonly.runtime.worker.isolated_runs": "alone",
    "onceonly.runtime.worker.transports": "redelivery",
}
"""Each comes after those it imports. The values are their names in `Programs`, empty for those that only others import."""


class Programs(NamedTuple):
    """The modules a check runs. `has_log` tells whether the calls and the report of each batch are compared with its log."""

    identity: Any
    retry: Any
    admission: Any
    effects: Any
    third_party: Any
    delivery: Any
    relay: Any
    transaction: Any
    sweeper: Any
    stores: Any
    stored_rows: Any
    transactions: Any
    ring: Any
    rings: Any
    database: Any
    database_transactions: Any
    dedup: Any
    tokens: Any
    artifacts: Any
    remote_requests: Any
    remote: Any
    memory_third_party: Any
    execution: Any
    memory_documents: Any
    application: Any
    retention: Any
    documents: Any
    marks: Any
    document_pending: Any
    register: Any
    document_transactions: Any
    transports: Any
    run_markers: Any
    hosted_transport: Any
    hosted_run_markers: Any
    hosted_calls: Any
    host: Any
    session: Any
    counters: Any
    alone: Any
    redelivery: Any
    has_log: bool = True


def shipped() -> Programs:
    """Return the modules as every user of the library imports them."""
    return _together({name: importlib.import_module(name) for name in MODULES})


def changed(changes: Sequence[CodeChange], *, has_log: bool = True) -> Programs:
    """Compile all modules anew, with these changes; what is imported elsewhere stays as it is. Raises DoesNotApply."""
    return _together(_compiled(changes))._replace(has_log=has_log)


def compile_unchanged() -> None:
    """Compile the modules without a change, and remember them: this process, and those that it forks, need not do it again."""
    for name in MODULES:
        _unchanged(name)


def _compiled(changes: Sequence[CodeChange]) -> dict[str, ModuleType]:
    fresh: dict[str, ModuleType] = {}
    unknown = {each.module for each in changes} - {name.removeprefix("onceonly.") for name in MODULES}
    if unknown:
        raise DoesNotApply(f"no module under check is called {', '.join(sorted(unknown))}")
    for name in MODULES:
        here = tuple(each for each in changes if each.module == name.removeprefix("onceonly."))
        code = _code(name, here) if here else _unchanged(name)
        fresh[name] = _execute(name, code, fresh)
    return fresh


@cache
def _unchanged(name: str) -> CodeType:
    return _code(name, ())


def _code(name: str, changes: Sequence[CodeChange]) -> CodeType:
    tree = mutated(inspect.getsource(importlib.import_module(name)), changes)
    return compile(tree, f"<{name}, changed>", "exec")


def _execute(name: str, code: CodeType, fresh: Mapping[str, ModuleType]) -> ModuleType:
    """Run a module so that it imports the fresh modules instead of the shipping ones."""

    def load(wanted: str, *rest: Any, **named: Any) -> Any:
        return fresh.get(wanted) or builtins.__import__(wanted, *rest, **named)

    module = ModuleType(name)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": load}
    exec(code, vars(module))  # noqa: S102 - our own source, changed by our own mutants
    return module


def _together(modules: Mapping[str, ModuleType]) -> Programs:
    parts: dict[str, Any] = {field: modules[name] for name, field in MODULES.items() if field}
    return Programs(**parts)
