"""The public surface is a list that someone decided on, and importing it is cheap."""

import subprocess
import sys

import onceonly

HEAVY = {"sqlalchemy", "aiosqlite", "pydantic", "attr", "attrs", "typer", "rich", "uvloop", "multiprocessing", "pytest"}


def test_the_public_names_are_sorted_and_all_there() -> None:
    """Nothing else is promised to stay."""
    assert onceonly.__all__ == sorted(onceonly.__all__)
    assert all(hasattr(onceonly, name) for name in onceonly.__all__)


def test_nothing_else_is_public() -> None:
    """Subpackages do not count: Python adds them as they are imported."""
    modules = {name for name, value in vars(onceonly).items() if type(value) is type(sys)}
    public = {name for name in vars(onceonly) if not name.startswith("_")}
    later = {"Outgoing", "Transaction"}  # imported when they are asked for
    assert (public | later) - modules - {"TYPE_CHECKING", "Any"} == set(onceonly.__all__)


def test_importing_it_imports_no_driver_and_nothing_heavy() -> None:
    """A driver is imported when a URL names it."""
    program = f"import sys, onceonly; found = {HEAVY!r} & set(sys.modules); sys.exit(', '.join(sorted(found)) or 0)"
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
