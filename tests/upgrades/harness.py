"""What both tests of upgrades need: the restored SQLite files, and the program that works on them."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PROGRAM = "tests.upgrades.upgrade_program"
ORDERS = set(range(1, 10))


@contextmanager
def restored(dumps: Path, place: Path) -> Iterator[ModuleType]:
    """Restore the files of a folder in the current directory, `place`, and import the program that works on them."""
    for dump in dumps.glob("*.sql"):
        with closing(sqlite3.connect(place / f"{dump.stem}.db")) as database:
            database.executescript(dump.read_text(encoding="utf-8"))
    sys.modules.pop(PROGRAM, None)  # its endpoints belong to the directory in which it was imported
    yield import_module(PROGRAM)
    sys.modules.pop(PROGRAM, None)


def ask(file: str, query: str) -> list[tuple[Any, ...]]:
    """Ask one of the files."""
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()
