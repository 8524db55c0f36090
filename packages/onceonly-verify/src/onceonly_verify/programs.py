"""The code under check: the shipping modules themselves, or a fresh set of them with changes applied."""

import builtins
import importlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from onceonly_verify.mutations import CodeChange, DoesNotApply, mutated

MODULES = (
    "onceonly.model.identity",
    "onceonly.model.retry",
    "onceonly.algorithms.admission",
    "onceonly.algorithms.sweeper",
    "onceonly.algorithms.remote_call",
    "onceonly.algorithms.effects",
    "onceonly.algorithms.intake",
    "onceonly.algorithms.outbox",
    "onceonly.algorithms.relay",
    "onceonly.algorithms.control",
    "onceonly.algorithms.transaction",
    "onceonly.algorithms.remote_execution",
    "onceonly.algorithms.delivery",
    "onceonly.algorithms.sweeper",
    "onceonly.adapters.memory.store",
    "onceonly.adapters.memory.register",
    "onceonly.adapters.memory.starts",
    "onceonly.adapters.memory.transactions",
    "onceonly.adapters.memory.ring",
    "onceonly.adapters.memory.database",
    "onceonly.adapters.memory.dedup",
    "onceonly.adapters.memory.tokens",
    "onceonly.adapters.memory.artifacts",
    "onceonly.adapters.memory.database_transactions",
    "onceonly.adapters.memory.remote_requests",
    "onceonly.adapters.memory.remote",
    "onceonly.adapters.memory.documents",
    "onceonly.documents.compare_and_set",
    "onceonly.documents.store",
    "onceonly.documents.register",
    "onceonly.documents.transactions",
    "onceonly.documents.dedup",
    "onceonly.adapters.memory.transport",
    "onceonly.runtime.processes.counters",
    "onceonly.runtime.worker.alone",
    "onceonly.runtime.worker.redelivery",
)
"""Each comes after those it imports."""
WORLDS = ("onceonly.adapters.memory.store", "onceonly.adapters.memory.transport")
"""How the names of those begin whose values make up a world: an older engine beside a newer one shares them with it."""


class Programs(NamedTuple):
    """The modules a check runs. `has_log` tells whether the calls and the report of each batch are compared with its log."""

    identity: Any
    retry: Any
    admission: Any
    effects: Any
    delivery: Any
    relay: Any
    transaction: Any
    sweeper: Any
    stores: Any
    stored_rows: Any
    transactions: Any
    ring: Any
    database: Any
    database_transactions: Any
    dedup: Any
    tokens: Any
    artifacts: Any
    remote_requests: Any
    remote: Any
    execution: Any
    memory_documents: Any
    documents: Any
    marks: Any
    register: Any
    document_transactions: Any
    transports: Any
    starts: Any
    counters: Any
    alone: Any
    redelivery: Any
    has_log: bool = True


def shipped() -> Programs:
    """Give the modules as every user of the library imports them."""
    return _together({name: importlib.import_module(name) for name in MODULES})


def changed(changes: Sequence[CodeChange], *, has_log: bool = True) -> Programs:
    """Compile all modules anew, with these changes; what is imported elsewhere stays as it is. Raises DoesNotApply."""
    return _together(_compiled(changes, {}))._replace(has_log=has_log)


def _compiled(changes: Sequence[CodeChange], shared: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    fresh = dict(shared)
    unknown = {each.module for each in changes} - {name.removeprefix("onceonly.") for name in MODULES}
    if unknown:
        raise DoesNotApply(f"no module under check is called {', '.join(sorted(unknown))}")
    for name in (name for name in MODULES if name not in shared):
        here = tuple(each for each in changes if "onceonly." + each.module == name)
        code = _code(name, here) if here else _unchanged(name)
        fresh[name] = _execute(name, code, fresh)
    return fresh


@cache
def _unchanged(name: str) -> CodeType:
    return _code(name, ())


def _code(name: str, changes: Sequence[CodeChange]) -> CodeType:
    tree = mutated(inspect.getsource(importlib.import_module(name)), changes)
    return compile(tree, f"<{name}, changed>", "exec")


def older(programs: Programs, changes: Sequence[CodeChange]) -> Programs:
    """Compile what works on the same world as these programs do, with changes that make another version of it."""
    modules = [each for each in programs if isinstance(each, ModuleType)]
    shared = {module.__name__: module for module in modules if module.__name__.startswith(WORLDS)}
    return _together(_compiled(changes, shared))._replace(has_log=programs.has_log)


def _execute(name: str, code: CodeType, fresh: Mapping[str, ModuleType]) -> ModuleType:
    """Run a module so that it imports the fresh modules instead of the shipping ones."""

    def load(wanted: str, *rest: Any, **named: Any) -> Any:
        return fresh.get(wanted) or builtins.__import__(wanted, *rest, **named)

    module = ModuleType(name)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": load}
    exec(code, vars(module))  # noqa: S102 - our own source, changed by our own mutants
    return module


def _together(modules: Mapping[str, ModuleType]) -> Programs:
    return Programs(
        identity=modules["onceonly.model.identity"],
        retry=modules["onceonly.model.retry"],
        admission=modules["onceonly.algorithms.admission"],
        effects=modules["onceonly.algorithms.effects"],
        delivery=modules["onceonly.algorithms.delivery"],
        relay=modules["onceonly.algorithms.relay"],
        transaction=modules["onceonly.algorithms.transaction"],
        sweeper=modules["onceonly.algorithms.sweeper"],
        stores=modules["onceonly.adapters.memory.store"],
        stored_rows=modules["onceonly.adapters.memory.register"],
        transactions=modules["onceonly.adapters.memory.transactions"],
        ring=modules["onceonly.adapters.memory.ring"],
        database=modules["onceonly.adapters.memory.database"],
        database_transactions=modules["onceonly.adapters.memory.database_transactions"],
        dedup=modules["onceonly.adapters.memory.dedup"],
        tokens=modules["onceonly.adapters.memory.tokens"],
        artifacts=modules["onceonly.adapters.memory.artifacts"],
        remote_requests=modules["onceonly.adapters.memory.remote_requests"],
        remote=modules["onceonly.adapters.memory.remote"],
        execution=modules["onceonly.algorithms.remote_execution"],
        memory_documents=modules["onceonly.adapters.memory.documents"],
        documents=modules["onceonly.documents.store"],
        marks=modules["onceonly.documents.dedup"],
        register=modules["onceonly.documents.register"],
        document_transactions=modules["onceonly.documents.transactions"],
        transports=modules["onceonly.adapters.memory.transport"],
        starts=modules["onceonly.adapters.memory.starts"],
        counters=modules["onceonly.runtime.processes.counters"],
        alone=modules["onceonly.runtime.worker.alone"],
        redelivery=modules["onceonly.runtime.worker.redelivery"],
    )
