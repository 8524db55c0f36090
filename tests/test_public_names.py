"""The public surface is a list that someone decided on, and importing it is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import onceonly

HEAVY = {"sqlalchemy", "aiosqlite", "pydantic", "attr", "attrs", "typer", "rich", "uvloop", "multiprocessing", "pytest"}
LATE = {"json", "shlex", "onceonly.model.failure_group", "onceonly.endpoint.hosted", "onceonly.endpoint.transactions"}


def test_the_public_names_are_sorted_and_all_there() -> None:
    """Nothing else is promised to stay."""
    assert onceonly.__all__ == sorted(onceonly.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(onceonly, name) for name in onceonly.__all__)


def test_nothing_else_is_public() -> None:
    """Subpackages do not count: Python adds them as they are imported."""
    modules = {name for name, value in vars(onceonly).items() if type(value) is type(sys)}
    public = {name for name in dir(onceonly) if not name.startswith("_")}
    assert public - modules - {"TYPE_CHECKING", "Any", "import_module"} == set(onceonly.__all__)


def test_what_type_checkers_see_is_what_is_imported() -> None:
    """The names stand twice in the source."""
    tree = ast.parse(Path(onceonly.__file__).read_text(encoding="utf-8"))
    (block,) = [each for each in tree.body if isinstance(each, ast.If)]
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    checked = {(str(each.module), alias.name) for each in imports for alias in each.names}
    assert checked == {(module, name) for module, names in onceonly._MODULES.items() for name in names}
    assert {name for _, name in checked} == set(onceonly.__all__)


def test_importing_it_imports_nothing_else_of_it() -> None:
    """Each name is imported when it is used. A new import at the top fails here."""
    program = "import sys, onceonly; print(*sorted(each for each in sys.modules if each.startswith('onceonly')))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["onceonly"]


def test_importing_it_imports_no_driver_and_nothing_heavy() -> None:
    """A driver is imported when a URL names it."""
    program = (
        f"import sys; from onceonly import *; found = {HEAVY!r} & set(sys.modules); sys.exit(', '.join(sorted(found)) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_what_each_application_uses_leaves_out_what_few_need() -> None:
    """These are imported when they are used: to write JSON for people, to quote commands, to group dead letters."""
    program = (
        "import sys, asyncio, msgspec; before = set(sys.modules); from onceonly import Context, Endpoint, Retry\n"
        f"sys.exit(', '.join(sorted({LATE!r} & (set(sys.modules) - before))) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_making_an_endpoint_imports_no_driver_either() -> None:
    """Only its start does, so a module with endpoints stays cheap to import."""
    program = (
        "import sys, onceonly\n"
        "shop = onceonly.Endpoint('shop', store='sqlite:///a.db', transport='sqlite:///b.db')\n"
        "@shop.handler(type='x')\n"
        "async def place(order: dict, context: onceonly.Context) -> None: ...\n"
        "shop.topology()\n"
        f"sys.exit(', '.join(sorted({HEAVY!r} & set(sys.modules))) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
