"""The code under check: the shipping modules themselves, or a fresh set of them with changes applied."""

import ast
import builtins
import importlib
import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from onceonly_verify.mutations import CodeChange, DoesNotApply, mutated

MODULES = (
    "onceonly.model.identity",
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
    "onceonly.adapters.memory.starts",
    "onceonly.adapters.memory.transactions",
    "onceonly.adapters.memory.ring",
    "onceonly.adapters.memory.database",
    "onceonly.adapters.memory.dedup",
    "onceonly.adapters.memory.tokens",
    "onceonly.adapters.memory.artifacts",
    "onceonly.adapters.memory.transactions",
    "onceonly.adapters.memory.remote_requests",
    "onceonly.adapters.memory.remote",
    "onceonly.adapters.memory.documents",
    "onceonly.documents.store",
    "onceonly.documents.register",
    "onceonly.documents.transactions",
    "onceonly.adapters.memory.transport",
)
"""Each comes after those it imports."""
WORLDS = ("onceonly.adapters.memory.store", "onceonly.adapters.memory.transport")
"""How the names of those begin whose values make up a world: an older engine beside a newer one shares them with it."""


class Programs(NamedTuple):
    """The modules a check runs."""

    identity: Any
    admission: Any
    effects: Any
    delivery: Any
    relay: Any
    transaction: Any
    sweeper: Any
    stores: Any
    transactions: Any
    ring: Any
    database: Any
    dedup: Any
    tokens: Any
    artifacts: Any
    remote_requests: Any
    remote: Any
    execution: Any
    memory_documents: Any
    documents: Any
    register: Any
    document_transactions: Any
    transports: Any
    starts: Any


def shipped() -> Programs:
    """Give the modules as every user of the library imports them."""
    return _together({name: importlib.import_module(name) for name in MODULES})


def changed(changes: Sequence[CodeChange]) -> Programs:
    """Compile all modules anew, with these changes; what is imported elsewhere stays as it is. Raises DoesNotApply."""
    return _together(_compiled(changes, {}))


def _compiled(changes: Sequence[CodeChange], shared: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    fresh = dict(shared)
    unknown = {each.module for each in changes} - {name.removeprefix("onceonly.") for name in MODULES}
    if unknown:
        raise DoesNotApply(f"no module under check is called {', '.join(sorted(unknown))}")
    for name in (name for name in MODULES if name not in shared):
        source = inspect.getsource(importlib.import_module(name))
        tree = mutated(source, [each for each in changes if "onceonly." + each.module == name])
        fresh[name] = _compile(name, tree, fresh)
    return fresh


def older(programs: Programs, changes: Sequence[CodeChange]) -> Programs:
    """Compile what works on the same world as these programs do, with changes that make another version of it."""
    shared = {module.__name__: module for module in programs if module.__name__.startswith(WORLDS)}
    return _together(_compiled(changes, shared))


def _compile(name: str, tree: ast.Module, fresh: Mapping[str, ModuleType]) -> ModuleType:
    """Run a module so that it imports the fresh modules instead of the shipping ones."""

    def load(wanted: str, *rest: Any, **named: Any) -> Any:
        return fresh.get(wanted) or builtins.__import__(wanted, *rest, **named)

    module = ModuleType(name)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": load}
    exec(compile(tree, f"<{name}, changed>", "exec"), vars(module))  # noqa: S102 - our own source, changed by our own mutants
    return module


def _together(modules: Mapping[str, ModuleType]) -> Programs:
    return Programs(
        identity=modules["onceonly.model.identity"],
        admission=modules["onceonly.algorithms.admission"],
        effects=modules["onceonly.algorithms.effects"],
        delivery=modules["onceonly.algorithms.delivery"],
        relay=modules["onceonly.algorithms.relay"],
        transaction=modules["onceonly.algorithms.transaction"],
        sweeper=modules["onceonly.algorithms.sweeper"],
        stores=modules["onceonly.adapters.memory.store"],
        transactions=modules["onceonly.adapters.memory.transactions"],
        ring=modules["onceonly.adapters.memory.ring"],
        database=modules["onceonly.adapters.memory.database"],
        dedup=modules["onceonly.adapters.memory.dedup"],
        tokens=modules["onceonly.adapters.memory.tokens"],
        artifacts=modules["onceonly.adapters.memory.artifacts"],
        remote_requests=modules["onceonly.adapters.memory.remote_requests"],
        remote=modules["onceonly.adapters.memory.remote"],
        execution=modules["onceonly.algorithms.remote_execution"],
        memory_documents=modules["onceonly.adapters.memory.documents"],
        documents=modules["onceonly.documents.store"],
        register=modules["onceonly.documents.register"],
        document_transactions=modules["onceonly.documents.transactions"],
        transports=modules["onceonly.adapters.memory.transport"],
        starts=modules["onceonly.adapters.memory.starts"],
    )
