"""Writes the pages of `docs/` that follow from the code. `make docs` runs it; a test compares the pages with what it gives.

`PUBLIC` is the one list of public modules. Every name in the `__all__` of such a module is public and has an entry on the
module's page in `docs/reference/`. All other modules and names are private.
"""

from collections.abc import Iterator
from pathlib import Path

from griffe import Alias, Class, Function, GriffeLoader, Object, Parameter, ParameterKind, Parser

from onceonly.runtime.observe.crash import CRASH_POINTS

HERE = Path(__file__).parent

PUBLIC = {
    "onceonly": "what applications use every day",
    "onceonly.errors": "all errors",
    "onceonly.integrations.fastapi": "routes and dependencies for FastAPI",
    "onceonly.integrations.starlette": "the same for Starlette",
    "onceonly.testing": "the kit for tests of your handlers",
    "onceonly.sql.store.tables": "the tables, for migration tools",
    "onceonly.systems": "plug-ins: what a database, broker or service offers",
    "onceonly.systems.threads": "for plug-ins with blocking drivers",
    "onceonly.ports.documents": "for plug-ins that keep documents",
    "onceonly.ports.effects": "for plug-ins that keep artifacts",
    "onceonly.ports.transport": "for plug-ins that are brokers",
    "onceonly.ports.environment": "clock, timer, random numbers and ids",
    "onceonly.model.artifact": "the artifacts of a message",
    "onceonly.model.message": "messages, deliveries and failures",
    "onceonly.documents.encoding": "texts in documents",
    "onceonly.documents.limits": "sizes of documents",
    "onceonly.testing.artifact_suite": "conformance of artifacts",
    "onceonly.testing.documents_suite": "conformance of documents",
    "onceonly.testing.documents_subject": "what that suite needs",
    "onceonly.testing.on_documents": "conformance of deduplication, tokens and transactions on documents",
    "onceonly.testing.transport_suite": "conformance of transports",
}

CRASH_POINTS_HEAD = """\
# Crash points

Every place where a process can die on the way of a message, in the order a message meets them, by the name that the code, the
kit and the tests share. `testing.run(...)` and `deliver(..., crash_at=NAME)` kill your own handler there.
Written by `make docs`.

| the process dies | what happens then |
|---|---|
"""
INDEX_HEAD = """\
# Reference

The public modules. Each name on their pages is public. Other modules, and names that begin with an underscore, may change at
any time. Written by `make docs`.

| module | what it has |
|---|---|
"""
MARKS = {ParameterKind.var_positional: "*", ParameterKind.var_keyword: "**"}


def pages() -> dict[str, str]:
    """Give every generated page by its file name."""
    rows = (f"| `{name}` | {story} |\n" for name, story in CRASH_POINTS.items())
    modules = (f"| [`{module}`]({module}.md) | {words} |\n" for module, words in PUBLIC.items())
    return {
        "crash-points.md": CRASH_POINTS_HEAD + "".join(rows),
        "reference/index.md": INDEX_HEAD + "".join(modules),
        **{f"reference/{module}.md": page for module, page in _references()},
    }


def _references() -> Iterator[tuple[str, str]]:
    """Write a page for each public module, from the source: nothing is imported, so no driver is needed."""
    loader = GriffeLoader(search_paths=[HERE.parent / "src"], docstring_parser=Parser.google)
    library = loader.load("onceonly")
    loader.resolve_aliases()
    for module in PUBLIC:
        found = library[module.removeprefix("onceonly").lstrip(".")] if module != "onceonly" else library
        names = sorted(map(str, found.exports or ()), key=str.lower)
        entries = (entry for name in names for entry in _entry(name, found[name]))
        yield module, "\n\n".join([f"# {module}", _text(found), "Written by `make docs`.", *entries]) + "\n"


def _entry(name: str, found: Object | Alias) -> Iterator[str]:
    """Describe one name, and what a class has."""
    target = found.final_target if isinstance(found, Alias) else found
    yield f"## {name}"
    match target:
        case Function():
            yield _code(f"{'async ' if 'async' in target.labels else ''}def {name}{_signature(target)}")
        case Class():
            made = target.all_members.get("__init__")
            fields = [f"    {each.name}: {each.annotation}{_default(each)}" for each in _attributes(target)]
            bases = ", ".join(map(str, target.bases))
            head = f"class {name}({bases})" if bases else f"class {name}"
            yield _code("\n".join([head, *fields]))
            if isinstance(made, Function):
                yield _code(f"{name}{_signature(made)}")
        case _:
            value = str(target.value) if target.value is not None else ""
            yield _code(f"{name} = {value}" if len(value) < 80 else name)  # noqa: PLR2004 - a line
    if text := _text(target):
        yield text
    if isinstance(target, Class):
        for each in _methods(target):
            marks = "async " if "async" in each.labels else ""
            words = f"{marks}def {each.name}{_signature(each)}" if isinstance(each, Function) else each.name
            yield f"### {name}.{each.name}"
            yield _code(words)
            if text := _text(each):
                yield text


def _attributes(target: Class) -> list[Object]:
    """List the annotated fields of a class."""
    found = [each for name, each in target.members.items() if not name.startswith("_") and each.is_attribute]
    return [each for each in found if getattr(each, "annotation", None) is not None and "property" not in each.labels]


def _methods(target: Class) -> list[Object]:
    """List the methods and properties of a class and of its bases in this package, in the order of their definition."""
    members = {**target.inherited_members, **target.members}
    found = [
        each.final_target if isinstance(each, Alias) else each for name, each in members.items() if not name.startswith("_")
    ]
    return [each for each in found if each.is_function or "property" in each.labels]


def _signature(function: Function) -> str:
    """Write parameters with types and defaults, on a line each where there are many."""
    parts, is_keyword = list[str](), False
    for each in function.parameters:
        if each.name in {"self", "cls"}:
            continue
        if each.kind is ParameterKind.keyword_only and not is_keyword:
            parts.append("*")
        is_keyword = is_keyword or each.kind in {ParameterKind.keyword_only, ParameterKind.var_positional}
        parts.append(_parameter(each))
    returns = f" -> {function.returns}" if function.returns else ""
    line = f"({', '.join(parts)}){returns}"
    if len(line) < 100:  # noqa: PLR2004 - a line
        return line
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _parameter(each: Parameter) -> str:
    kind = f": {each.annotation}" if each.annotation else ""
    default = f" = {each.default}" if each.default is not None and each.kind not in MARKS else ""
    return f"{MARKS.get(each.kind, '') if each.kind else ''}{each.name}{kind}{default}"


def _default(each: Object) -> str:
    value = getattr(each, "value", None)
    return f" = {value}" if value is not None and len(str(value)) < 60 else ""  # noqa: PLR2004 - a line


def _text(found: Object | Alias) -> str:
    return found.docstring.value if found.docstring else ""


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
