"""Every public name has an entry in the reference, and nothing that users read imports a private one."""

import ast
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

import pytest

from onceonly import Endpoint, IdempotencyKey, IdentityField, IdentityHeader, Off
from onceonly.assembly.sql import SCHEMAS
from onceonly.errors import SetupError
from onceonly.model.destination import Destination
from onceonly.ports.projections import Projection
from onceonly.systems import GROUP, system_of
from tests import ROOT

DOCS = ROOT / "docs"
GENERATE = runpy.run_path(str(DOCS / "generate" / "__main__.py"))
PUBLIC: dict[str, str] = GENERATE["PUBLIC"]
ROOTS = {module.split(".")[0] for module in PUBLIC}
LISTS = {"body-types", "command-line", "log-events", "rabbitmq-objects", "settings", "tables", "urls", "wire-format"}
SYSTEMS = {
    "azure-queues",
    "cosmos",
    "brokers",
    "databases",
    "mongodb",
    "nats",
    "postgresql",
    "rabbitmq",
    "redis",
    "service-bus",
    "sqs",
}
WRITTEN = LISTS | SYSTEMS | {"messages", "metrics", "versions"}
READ_BY_USERS = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*/*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "tests" / "plugins").glob("toy*/**/*.py")),
]
EXAMPLES = {"Account"}
"""Names of users' own classes in docstrings."""
FENCE = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_no_page_is_left_over() -> None:
    """Each page belongs to a public module, or is listed here."""
    assert {path.stem for path in (DOCS / "reference").iterdir()} == {"index", *WRITTEN, *PUBLIC}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry_with_words(module: str) -> None:
    """A heading, its form, and what it is for."""
    page = (DOCS / "reference" / f"{module}.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    names = importlib.import_module(module).__all__
    assert sorted(entries) == sorted(names)
    bare = re.compile(r"^#.*$|```.*?```", re.MULTILINE | re.DOTALL)
    assert [name for name, text in entries.items() if not bare.sub("", text).strip()] == []


def test_public_signatures_have_public_types_only() -> None:
    """Parameters, results, fields and aliases: a type in one of them has an entry too."""
    assert GENERATE["private_types"](GENERATE["load"](), PUBLIC) == []


def test_pages_name_public_classes_only() -> None:
    """A docstring does not refer to a class that has no page."""
    library = GENERATE["load"]()
    public = {name.rpartition(".")[2] for name in GENERATE["_public"](library, PUBLIC)}
    private = {name for name in classes(library) if name not in public} - EXAMPLES
    for path in sorted((DOCS / "reference").glob("*.md")):
        words = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert private.intersection(re.findall(r"`([A-Z]\w+)[`.(]", words)) == set(), path.stem


def classes(module: Any) -> Iterator[str]:
    """Return the names of all classes in packages or modules."""
    for each in module.members.values():
        if not each.is_alias:
            yield from classes(each) if each.is_module else [each.name] if each.is_class else []


SHOP = """
from collections.abc import Callable
from typing import TypeVar
from shop.private import Hidden, Public
__all__ = ["Alias", "Class", "Context", "Public", "function"]
Alias = Hidden | None
_Any = TypeVar("_Any")
class Base:
    def inherited(self) -> "list[Hidden]": ...
class Class(Base):
    field: Hidden
    public: Public
    _private: Hidden
    def __init__(self, value: "Hidden") -> None: ...
    def method(self) -> None: ...
    def _hidden(self) -> Hidden: ...
class Context:
    def __init__(self, value: Hidden) -> None: ...
    @property
    def value(self) -> Hidden: ...
def function(call: Callable[[Hidden], _Any], value: Public) -> dict[str, _Any]: ...
def not_public(value: Hidden) -> None: ...
"""


@pytest.mark.parametrize(
    ("removed", "missing"),
    [
        ("", {"Alias", "Class", "Context", "function"}),
        ("Alias = Hidden | None", {"Class", "Context", "function"}),
        ("def function(call: Callable[[Hidden], _Any], value: Public)", {"Alias", "Class", "Context"}),
    ],
)
def test_a_private_type_is_found(tmp_path: Path, removed: str, missing: set[str]) -> None:
    """Wherever an entry shows it. The constructor of what the library creates is not shown."""
    (tmp_path / "shop").mkdir()
    replaced = SHOP.replace(removed, "Alias = None" if "=" in removed else "def function(value: Public)") if removed else SHOP
    (tmp_path / "shop" / "__init__.py").write_text(replaced)
    (tmp_path / "shop" / "private.py").write_text("class Hidden: ...\nclass Public: ...\n")
    found = GENERATE["private_types"](GENERATE["load"]({"shop": tmp_path}), ["shop"])
    assert found == [f"shop.{name}: shop.private.Hidden" for name in sorted(missing)]


@pytest.mark.parametrize(
    "member",
    [
        'def inherited(self) -> "list[Hidden]": ...',
        "field: Hidden",
        'def __init__(self, value: "Hidden") -> None: ...',
    ],
)
def test_each_part_of_a_class_is_looked_at(tmp_path: Path, member: str) -> None:
    """A field, a constructor, an inherited method."""
    (tmp_path / "shop").mkdir()
    program = f"from shop.private import Hidden\n__all__ = ['Class']\nclass Base:\n    {member}\nclass Class(Base): ...\n"
    if "field" in member:
        program = f"from shop.private import Hidden\n__all__ = ['Class']\nclass Class:\n    {member}\n"
    (tmp_path / "shop" / "__init__.py").write_text(program)
    (tmp_path / "shop" / "private.py").write_text("class Hidden: ...\n")
    assert GENERATE["private_types"](GENERATE["load"]({"shop": tmp_path}), ["shop"]) == ["shop.Class: shop.private.Hidden"]


@pytest.mark.parametrize("path", READ_BY_USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_users_read_imports_public_names_only(path: Path) -> None:
    """Snippets in pages, and programs."""
    text = path.read_text(encoding="utf-8")
    private = [f"{module}: {name}" for module, name in imported(text, path) if not is_public(module, name)]
    assert private == []


def test_a_private_import_is_found() -> None:
    """Of a module that is not listed, and of a name that is not public."""
    program = (
        "import onceonly.sql.queue\nfrom onceonly import Endpoint, systems, History_\nfrom onceonly.systems import full_name\n"
    )
    found = [(module, name) for module, name in imported(program, Path("program.py")) if not is_public(module, name)]
    assert found == [("onceonly.sql.queue", ""), ("onceonly", "History_"), ("onceonly.systems", "full_name")]


@pytest.mark.parametrize("path", ["how-to/systems", "explanation/effects", "explanation/testing"])
def test_what_a_page_offers_by_its_full_name_is_public(path: str) -> None:
    """Modules, and names of modules, also outside of snippets."""
    offered = re.findall(r"`(onceonly(?:\.\w+)+)(?:\(.*?\))?`", (DOCS / f"{path}.md").read_text(encoding="utf-8"))
    assert sorted({name for name in offered if not is_offered(name)}) == []


def test_the_index_has_every_public_module_once() -> None:
    """In its groups."""
    index = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`(.*?)`\]", index, re.MULTILINE) == list(PUBLIC)
    assert re.findall(r"^## (.*)$", index, re.MULTILINE) == list(GENERATE["GROUPS"])


def imported(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """Return the modules and names of this project's packages that a program, or the snippets of a page, import."""
    for program in [text] if path.suffix == ".py" else FENCE.findall(text):
        for node in ast.walk(parsed(program)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS:
                yield from ((str(node.module), alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] in ROOTS)


def parsed(program: str) -> Any:
    """Parse a snippet; one that is not a whole program has its imports at its top."""
    try:
        return ast.parse(program)
    except SyntaxError:
        lines = [line for line in program.splitlines() if re.match(r"(from|import) \S+[^(]*$", line)]
        return ast.parse("\n".join(lines))


def is_offered(name: str) -> bool:
    """Report whether a full name is that of a public module, or of a public name in one."""
    module, _, last = name.rpartition(".")
    return name in PUBLIC or is_public(module, last)


def is_public(module: str, name: str) -> bool:
    """Report whether a name, or with no name a module, is public."""
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and (not name or name in importlib.import_module(module).__all__)


def test_every_command_and_option_is_on_the_page_of_the_command_line() -> None:
    """With its default and its meaning; also those of groups and of the checker."""
    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    found = dict(GENERATE["commands"]())
    assert {"run", "dead retry", "verify", "topology create"} <= found.keys()
    for name, command in found.items():
        section = page.partition(f"## onceonly {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert f"`{parameter.opts[0]}`" in section, f"onceonly {name}: {parameter.opts[0]}"
                assert parameter.help, f"onceonly {name}: {parameter.opts[0]} has no help"


def test_every_variable_that_the_code_reads_is_on_the_page_of_the_command_line() -> None:
    """Those of options, and those that are read as they are."""
    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    read: set[str] = set()
    for path in (path for folder in GENERATE["FOLDERS"].values() for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"os\.environ\.get\((\w+)", text):
            constants = dict(zip(("SECRET", "USERS"), re.findall(r'"(ONCEONLY_DASHBOARD_\w+)"', text), strict=False))
            constants |= dict(re.findall(r'^(\w+) = "(\w+)"$', text, re.MULTILINE))
            read.add(constants[name])
    assert {"ONCEONLY_DASHBOARD_USERS", "AZURE_COSMOS_KEY"} <= read
    assert read - {"PYTHONSAFEPATH"} == GENERATE["VARIABLES"].keys()
    assert all(f"`{name}`" in page for name in GENERATE["VARIABLES"])


SETTINGS: dict[str, Any] = runpy.run_path(str(DOCS / "generate" / "settings.py"))


@pytest.mark.parametrize("owner", SETTINGS["SETTINGS"], ids=lambda owner: str(owner.__name__))
def test_every_setting_has_a_row_with_its_default_and_meaning(owner: type) -> None:
    """In the order of the arguments, and no other row."""
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {owner.__name__}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    assert {name.strip("`"): default for name, default, _ in rows} == SETTINGS["defaults"](owner)
    assert [name.strip("`") for name, _, _ in rows] == list(SETTINGS["SETTINGS"][owner][1])
    assert all(meaning.endswith(".") for _, _, meaning in rows)


def test_every_class_of_settings_is_on_the_page() -> None:
    """Those that an argument of `Endpoint` takes, by its annotation or its default."""
    arguments = inspect.signature(Endpoint).parameters.values()
    classes = {kind for each in arguments for kind in (type(each.default), *parts(each.annotation))}
    own = {kind for kind in classes if inspect.isclass(kind) and kind.__module__.startswith("onceonly.")}
    without_arguments = {Off}
    described_elsewhere = {IdentityHeader, IdentityField, Destination, Projection}
    of_a_setting = {IdempotencyKey}
    assert own - without_arguments - described_elsewhere == SETTINGS["SETTINGS"].keys() - {Endpoint} - of_a_setting


def parts(annotation: Any) -> Iterator[Any]:
    """Return the classes in an annotation, without those of a function's arguments."""
    inner = [each for each in get_args(annotation) if not isinstance(each, list)]
    if not inner:
        yield annotation
    for each in inner:
        yield from parts(each)


URLS: dict[str, Any] = runpy.run_path(str(DOCS / "generate" / "urls.py"))["URLS"]
OPTIONS = [(name, option) for name, family in URLS.items() for option in family.options]
"""Each option of each kind of URL."""


def with_options(family: Any, *options: str) -> object:
    """Read the example of some URLs with further options."""
    system = system_of(family.schemes[0])
    assert system is not None
    assert system.address is not None
    query = "&".join(filter(None, options))
    return system.address(f"{family.example}?{query}" if query else family.example)


def test_every_scheme_of_the_package_is_on_the_page_of_urls() -> None:
    """Those of its entry points."""
    found = [each.name for each in entry_points(group=GROUP) if each.value.startswith("onceonly.")]
    assert sorted(scheme for family in URLS.values() for scheme in family.schemes) == sorted(found)


@pytest.mark.parametrize("name", [name for name, family in URLS.items() if family.options and name != "MongoDB"])
def test_the_options_of_a_url_are_those_that_the_code_accepts(name: str) -> None:
    """The error about an unknown option names them."""
    family = URLS[name]
    with pytest.raises(SetupError) as caught:
        with_options(family, "unknown=1")
    supported = re.split(r"[ ,]+", str(caught.value).partition("Supported")[2].partition(":")[2].strip(" ."))
    only_for_postgresql = {"schema", "pgbouncer"} if name in {"SQLite", "MariaDB"} else set[str]()
    assert set(supported) - only_for_postgresql == family.options.keys()


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_the_default_of_an_option_is_what_a_url_without_it_means(name: str, option: str) -> None:
    """One without a default changes the address, or what is refused."""
    family = URLS[name]
    default, _, needs = family.options[option]
    if default is not None:
        assert with_options(family, needs, f"{option}={default}") == with_options(family, needs)


def test_a_wrong_default_is_found() -> None:
    """So the test above can fail."""
    rabbitmq = URLS["RabbitMQ"]
    assert with_options(rabbitmq, "lease=31") != with_options(rabbitmq)


def test_a_folder_has_no_options() -> None:
    """As the page has it."""
    with pytest.raises(SetupError):
        with_options(URLS["folder"], "unknown=1")


TABLES: dict[str, Any] = runpy.run_path(str(DOCS / "generate" / "tables.py"))


def test_every_column_of_every_table_is_described() -> None:
    """And no other one."""
    found = {TABLES["short"](table): set(table.columns.keys()) for _, tables in TABLES["components"]() for table in tables}
    assert {name: set(rows.columns) for name, rows in TABLES["TABLES"].items()} == found


def test_the_components_are_those_of_the_commands() -> None:
    """`onceonly schema` creates each of them."""
    assert TABLES["COMPONENTS"].keys() == SCHEMAS.keys()
