"""Writes the pages of `docs/` that follow from the code. `make docs` runs it; a test compares the pages with what it gives.

`GROUPS` is the one list of public modules. Every name in the `__all__` of such a module is public and has an entry on the
module's page in `docs/reference/`. All other modules and names are private.
"""

from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from runpy import run_path
from typing import Any

from griffe import (
    Alias,
    Class,
    Expr,
    ExprCall,
    ExprName,
    Function,
    GriffeLoader,
    ModulesCollection,
    Object,
    Parameter,
    ParameterKind,
    Parser,
)
from typer.core import TyperCommand, TyperGroup

from onceonly.cli.app import application
from onceonly.cli.commands import ListedCommand
from onceonly.config.location import read_url
from onceonly.model.destination import KINDS
from onceonly.model.wording import in_words
from onceonly.ports.transport import Traits
from onceonly.runtime.observe.crash import CRASH_POINTS

HERE = Path(__file__).parent
DOCS = HERE.parent
FOLDERS = {
    "onceonly": DOCS.parent / "src",
    "onceonly_dashboard": DOCS.parent / "packages" / "onceonly-dashboard" / "src",
}
"""The packages with public modules, and where their source is."""

GROUPS = {
    "For applications": {
        "onceonly": "what applications use every day",
        "onceonly.errors": "all errors",
        "onceonly.types": "types of arguments and results, for annotations",
        "onceonly.integrations.aws_lambda": "handlers of functions for AWS Lambda",
        "onceonly.integrations.azure_functions": "decorators for Azure Functions",
        "onceonly.integrations.celery": "the class of exactly-once tasks for Celery",
        "onceonly.integrations.django": "an installed app for Django, endpoints on its databases, and a decorator of views",
        "onceonly.integrations.django.tasks": "the backend for Django's tasks",
        "onceonly.integrations.fastapi": "routes and dependencies for FastAPI",
        "onceonly.integrations.faststream": "a middleware for FastStream",
        "onceonly.integrations.flask": "a decorator of views for Flask",
        "onceonly.integrations.starlette": "the same for Starlette",
        "onceonly.integrations.wsgi": "the same for other frameworks of WSGI",
        "onceonly.telemetry": "traces with OpenTelemetry",
        "onceonly_dashboard": "the dashboard as an ASGI application",
        "onceonly.alembic": "onceonly's tables in Alembic migrations",
        "onceonly.sql.store.tables": "the tables, for migration tools",
    },
    "For tests of applications": {
        "onceonly.testing": "the kit for tests of your handlers",
    },
    "For plug-ins": {
        "onceonly.systems": "a system: what a database, broker or service offers",
        "onceonly.systems.shared": "one connection for several endpoints",
        "onceonly.systems.threads": "calls of blocking drivers",
        "onceonly.systems.urls": "hosts and options of URLs",
        "onceonly.systems.carriers": "what sends messages of another library",
        "onceonly.ports.carrier": "the protocol of carriers",
        "onceonly.ports.documents": "the protocol of documents",
        "onceonly.ports.effects": "the protocol of artifacts",
        "onceonly.ports.projections": "the protocol of projections",
        "onceonly.ports.transport": "the protocol of brokers",
        "onceonly.ports.environment": "clock, timer, random numbers and ids",
        "onceonly.model.artifact": "the artifacts of a message",
        "onceonly.model.message": "messages, deliveries and failures",
        "onceonly.formats.cloudevents": "messages as headers and bodies, for brokers",
        "onceonly.documents.bulk": "requests for many documents",
        "onceonly.documents.clients": "errors that drivers raise by accident",
        "onceonly.documents.encoding": "keys and bodies that a service does not take as they are",
        "onceonly.documents.limits": "sizes of documents",
        "onceonly.sql.dialect": "what a SQL database has to offer",
        "onceonly.sql.options": "options in the URL of a SQL database",
    },
}
PUBLIC = {module: words for modules in GROUPS.values() for module, words in modules.items()}

CREATED_BY_THE_LIBRARY = {
    "Background",
    "Blobs",
    "Context",
    "ContextDocuments",
    "EndpointRun",
    "Hosted",
    "HttpApp",
    "EnlistedKey",
    "Outgoing",
    "Posted",
    "Requests",
    "Sent",
    "Transaction",
}
"""Classes whose constructors are private, so the reference does not show them."""

CRASH_POINTS_HEAD = """\
# Crash points

Every place where a process can die on the way of a message, in the order a message meets them, by the name that the code, the
kit and the tests share. `deliver(..., crash_at=NAME)` crashes your own endpoint there: see
[Test your handlers](../how-to/handler-tests.md).
Written by `make docs`.

| the process dies | what happens then |
|---|---|
"""
BROKERS = {
    "[NATS JetStream](nats.md)": "nats://localhost",
    "[RabbitMQ](rabbitmq.md)": "amqp://localhost",
    "[Redis Streams](redis.md)": "redis://localhost",
    "[SQS](sqs.md), standard": "sqs://eu-central-1",
    "[SQS](sqs.md), `fifo=true`": "sqs://eu-central-1?fifo=true",
    "[Azure Service Bus](service-bus.md)": "servicebus://name.servicebus.windows.net",
    "[Azure Service Bus](service-bus.md), `sessions=true`": "servicebus://name.servicebus.windows.net?sessions=true",
    "[Azure Storage Queues](azure-queues.md)": "azure-queue://account",
    "[Kafka](../how-to/kafka.md), sends only": "kafka://localhost",
    "[SQL databases](databases.md)": "postgresql://localhost/shop",
    "memory, for tests": "memory://shop",
}
"""The rows of the comparison of brokers: a URL with the options that change what the broker can do, and else the defaults."""
BROKERS_HEAD = """\
# Brokers compared

What each broker does with messages, with the default options of its URL. Every transport keeps the same promises, and the
conformance suite checks the values that it can. The values are the `traits` of each [system](../how-to/systems.md): see
[`Traits`](onceonly.ports.transport.md#traits).
Written by `make docs`.

| broker | body | lease | delay | order | receive | send | copies | late subscribers | destinations |
|---|---|---|---|---|---|---|---|---|---|
"""
BROKERS_FOOT = """
* *Body*: the longest one. A handler that sends a longer one fails before its commit. `max_body=` in the URL changes the limit
  of most brokers.
* *Lease*: a delivery of a silent process comes again after this time. A worker extends its leases.
* *Delay*: the longest one of the broker itself. A message that must wait for longer is put off again by receivers of the
  endpoint. Where there is none, they move messages to the queue when they are due. So the messages of an endpoint that does not
  run become due when it starts.
* *Order*: whether messages with the same `key=` are delivered in order. See [messages](messages.md#key).
* *Receive*, *send*: messages in one request. A transport makes several requests for a larger batch.
* *Copies*: what makes the copies of an event for its subscribers.
* *Late subscribers*: whether a delayed event goes to the endpoints that subscribe when it is due, or to those that subscribe
  when it is sent.
* *Destinations*: what it sends to that is not an endpoint, by the name that the broker has for it. See
  [messages](messages.md#destinations-that-are-not-endpoints).
"""
INDEX_HEAD = """\
# Reference

The public modules. Each name on their pages is public. Other modules, and names that begin with an underscore, may change at
any time. Written by `make docs`.

Other pages list the [settings](settings.md), the [URLs and their options](urls.md) and the [command line](command-line.md).
Operators need the [log events](log-events.md), the [tables](tables.md) and the [metrics](metrics.md). Programs without
onceonly need the [wire format](wire-format.md).
"""
COMMAND_LINE_HEAD = """\
# Command line

Every command of `onceonly`, with its options. Answers go to standard output, everything else to standard error.
Written by `make docs`.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | the command worked, and the answer is no, or an operation failed |
| 2 | a person must change something: an option, a URL, the set-up |

`onceonly run` and the other commands that run until a signal exit with code 0 after SIGTERM or Ctrl-C.

## Environment variables

| variable | meaning |
|---|---|
"""
VARIABLES = {
    "ONCEONLY_DASHBOARD_SECRET": "Secret of the dashboard's forms and logins, for several processes behind one address.",
    "ONCEONLY_DASHBOARD_USERS": "Users of the dashboard, one `NAME:HASH` per line, instead of `--users`.",
    "AZURE_COSMOS_KEY": "Key of an Azure Cosmos DB account, instead of the password in the URL.",
    "AZURE_STORAGE_CONNECTION_STRING": "Connection string of an Azure storage account.",
}
"""Variables that are read and do not belong to an option. A test compares them with those that the code reads."""
MARKS = {ParameterKind.var_positional: "*", ParameterKind.var_keyword: "**"}


def pages() -> dict[str, str]:
    """Return every generated page by its file name."""
    rows = (f"| `{name}` | {story} |\n" for name, story in CRASH_POINTS.items())
    return {
        "reference/brokers.md": BROKERS_HEAD + "".join(_broker(*each) for each in BROKERS.items()) + BROKERS_FOOT,
        "explanation/crash-points.md": CRASH_POINTS_HEAD + "".join(rows),
        "reference/index.md": INDEX_HEAD + "".join(_group(title, modules) for title, modules in GROUPS.items()),
        "reference/command-line.md": _command_line(),
        "reference/settings.md": run_path(str(HERE / "settings.py"))["page"](),
        "reference/tables.md": run_path(str(HERE / "tables.py"))["page"](),
        "reference/body-types.md": run_path(str(HERE / "body_types.py"))["page"](),
        "reference/urls.md": run_path(str(HERE / "urls.py"))["page"](),
        **{f"reference/{module}.md": page for module, page in _references()},
        **{f"diagrams/{name}": drawn for name, drawn in run_path(str(HERE / "diagrams.py"))["diagrams"]().items()},
    }


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Return every command by its whole name, in the order of the help."""
    for name, listed in application().commands.items():
        command = listed.load() if isinstance(listed, ListedCommand) else listed
        if isinstance(command, TyperGroup):
            for own, each in command.commands.items():
                assert isinstance(each, TyperCommand)  # noqa: S101 - for the type checker: Typer has made it
                yield f"{name} {own}", each
        else:
            assert isinstance(command, TyperCommand)  # noqa: S101 - the same
            yield name, command


def _command_line() -> str:
    found = dict(commands())
    variables = {str(each.envvar): _words(each) for command in found.values() for each in command.params if each.envvar}
    rows = (f"| `{name}` | {words} |\n" for name, words in sorted((variables | VARIABLES).items()))
    return COMMAND_LINE_HEAD + "".join(rows) + "".join(_command(name, command) for name, command in found.items())


def _command(name: str, command: TyperCommand) -> str:
    usage = " ".join(_argument(each) for each in command.params if each.param_type_name == "argument")
    rows = [f"| {_option(each)} | {_default_of(each)} | {_words(each)} |\n" for each in command.params if each.name != "help"]
    table = ["| argument or option | default | meaning |\n|---|---|---|\n", *rows, "\n"] if rows else []
    text = cleandoc(command.help or "").replace("\f", "")
    line = f"onceonly {name} [OPTIONS] {usage}".rstrip()
    return "\n".join([f"\n## onceonly {name}\n", "```text", line, "```\n", f"{text}\n", "".join(table).rstrip("\n"), ""])


def _argument(parameter: Any) -> str:
    metavar = str(parameter.metavar or parameter.name).upper()
    several = "..." if parameter.nargs != 1 else ""
    return f"{metavar}{several}" if parameter.required else f"[{metavar}]{several}"


def _option(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`"
    return ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))


def _default_of(parameter: Any) -> str:
    value = getattr(parameter.default, "value", parameter.default)
    if parameter.required:
        return "required"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None or value in ("", [], ()) else f"`{value}`"


def _words(parameter: Any) -> str:
    return " ".join(str(parameter.help or "").split()).replace("|", "\\|")


def _broker(label: str, url: str) -> str:
    """Write the row of one broker."""
    traits = read_url(url).traits
    assert isinstance(traits, Traits), url  # noqa: S101 - for the type checker
    delay = "any" if traits.longest_delay is None else in_words(traits.longest_delay) if traits.longest_delay else "none"
    cells = (
        label,
        f"{traits.max_body / 1024:,.0f} KiB",
        "until the connection ends" if traits.lease is None else in_words(traits.lease),
        delay,
        "by key" if traits.orders_keys else "no",
        traits.most_received or "any number",
        traits.most_sent or "any number",
        traits.fan_out,
        "yes" if traits.late_subscribers else "no",
        ", ".join(dict.fromkeys(f"`{KINDS[each.kind].__name__}`" for each in traits.destinations)) or "none",
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def _group(title: str, modules: dict[str, str]) -> str:
    rows = "".join(f"| [`{module}`]({module}.md) | {words} |\n" for module, words in modules.items())
    return f"\n## {title}\n\n| module | what it has |\n|---|---|\n{rows}"


def private_types(library: ModulesCollection, modules: Iterable[str]) -> list[str]:
    """List the private types of packages in annotations of its public names, as "public name: private type"."""
    public = _public(library, modules)
    found = set[str]()
    for module in modules:
        for name, entry in _names(library, module).items():
            for annotation in _annotations(name, _target(entry)):
                types = (_type(library, each) for each in annotation.iterate(flat=True) if isinstance(each, ExprName))
                found |= {f"{module}.{name}: {path}" for path in types if path and path not in public}
    return sorted(found)


def load(folders: Mapping[str, Path] = FOLDERS) -> ModulesCollection:
    """Read packages from their source. Nothing is imported, so no driver is needed."""
    loader = GriffeLoader(search_paths=list(folders.values()), docstring_parser=Parser.google)
    for package in folders:
        loader.load(package)
    loader.resolve_aliases()
    return loader.modules_collection


def _references() -> Iterator[tuple[str, str]]:
    """Write a page for each public module."""
    library = load()
    public = _public(library, PUBLIC)
    for module in PUBLIC:
        names = sorted(_names(library, module).items(), key=lambda item: item[0].lower())
        entries = (entry for name, found in names for entry in _entry(name, found, public))
        page = [f"# {module}", _text(library[module]), "Written by `make docs`.", *entries]
        yield module, "\n\n".join(page) + "\n"


def _names(library: ModulesCollection, module: str) -> dict[str, Object | Alias]:
    """Return what the `__all__` of a module names."""
    found = library[module]
    return {str(name): found[str(name)] for name in found.exports or ()}


def _public(library: ModulesCollection, modules: Iterable[str]) -> frozenset[str]:
    """Return the full names of the objects that have an entry on some page, as they are where they are defined."""
    return frozenset(_target(entry).path for module in modules for entry in _names(library, module).values())


def _target(found: Object | Alias) -> Object:
    return found.final_target if isinstance(found, Alias) else found


def _annotations(name: str, target: Object) -> Iterator[Expr]:
    """Return the annotations that the entry of a name shows."""
    match target:
        case Function():
            given = [*(each.annotation for each in target.parameters), target.returns]
        case Class():
            for member in (*_constructor(name, target), *_methods(target)):
                yield from _annotations("", member)
            given = [each.annotation for each in _attributes(target)]
        case _:
            given = [getattr(target, "annotation", None), getattr(target, "value", None)]
    yield from (each for each in given if isinstance(each, Expr))


def _type(library: ModulesCollection, name: ExprName) -> str:
    """Return the full name of a class or a type alias of the package; empty for everything else, such as a type variable."""
    path = name.canonical_path
    if path.partition(".")[0] not in library.members:
        return ""
    try:
        target = _target(library[path])
    except (KeyError, AttributeError):
        return ""
    value = str(getattr(target, "value", None) or "")
    is_alias = target.is_attribute and not target.name.startswith("_") and target.parent is not None and target.parent.is_module
    is_variable = value.startswith(("TypeVar(", "ParamSpec("))
    return target.path if target.is_class or (is_alias and not is_variable) else ""


def _entry(name: str, found: Object | Alias, public: frozenset[str]) -> Iterator[str]:
    """Describe one name, and what a class has. `public` has the full names of all public objects."""
    target = _target(found)
    yield f"## {name}"
    match target:
        case Function():
            yield _code(f"{'async ' if 'async' in target.labels else ''}def {name}{_signature(target)}")
        case Class():
            fields = [f"    {each.name}: {each.annotation}{_default(each)}" for each in _attributes(target)]
            fields += [f"    {each.name} = {getattr(each, 'value', '')}" for each in _members(target)]
            bases = ", ".join(_bases(target, public))
            head = f"class {name}({bases})" if bases else f"class {name}"
            yield _code("\n".join([head, *fields]))
            for made in _constructor(name, target):
                yield _code(f"{name}{_signature(made)}")
        case _:
            value = str(target.value) if target.value is not None else ""
            yield _code(f"{name} = {value}" if len(value) < 80 else name)  # noqa: PLR2004 - a line
    if text := _text(target):
        yield text
    if isinstance(target, Class):
        described = [each for each in (*_attributes(target), *_members(target)) if _text(each)]
        if described:
            yield "\n".join(f"* `{each.name}`: {_text(each)}" for each in described)
        for each in _methods(target):
            marks = "async " if "async" in each.labels else ""
            words = f"{marks}def {each.name}{_signature(each)}" if isinstance(each, Function) else each.name
            yield f"### {name}.{each.name}"
            yield _code(words)
            if text := _text(each):
                yield text


def _constructor(name: str, target: Class) -> Iterator[Function]:
    """Return the constructor of a class, if users may call it."""
    made = _target(target.all_members["__init__"]) if "__init__" in target.all_members else None
    if isinstance(made, Function) and name not in CREATED_BY_THE_LIBRARY:
        yield next(_taken(made), made)


def _taken(made: Function) -> Iterator[Function]:
    """Return the constructor of the class whose arguments a function takes; see `onceonly.config.endpoint`."""
    for each in made.decorators:
        if each.callable_path.endswith(".takes") and isinstance(each.value, ExprCall):
            (kind,) = each.value.arguments
            found = made.package[f"{kind.canonical_path.partition('.')[2]}.__init__"] if isinstance(kind, Expr) else None
            if isinstance(found, Function):
                yield found


def _bases(target: Class, public: frozenset[str]) -> Iterator[str]:
    """Name the bases of a class: in place of a private one, the bases of that."""
    own = {base.path: base for base in target.resolved_bases if isinstance(base, Class)}
    for base in target.bases:
        path = base.canonical_path if isinstance(base, Expr) else ""
        if path in own and path not in public:
            yield from _bases(own[path], public)
        else:
            yield str(base)


def _attributes(target: Class) -> list[Object]:
    """List the annotated fields of a class."""
    found = [each for name, each in target.members.items() if not name.startswith("_") and each.is_attribute]
    return [each for each in found if getattr(each, "annotation", None) is not None and "property" not in each.labels]


def _members(target: Class) -> list[Object]:
    """List the members of an enumeration."""
    if not any(str(base) in {"Enum", "StrEnum"} for base in target.bases):
        return []
    found = [each for name, each in target.members.items() if not name.startswith("_") and each.is_attribute]
    return [each for each in found if getattr(each, "annotation", None) is None and "property" not in each.labels]


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
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
