"""What both tests of upgrades need: the restored and upgraded SQLite files, and the program that works on them."""

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from onceonly.runtime.environment import LIVE
from onceonly.sql.database import open_database
from onceonly.sql.schema import upgrade
from onceonly.sql.store import SCHEMA

PROGRAM = "tests.upgrades.upgrade_program"
ORDERS = set(range(1, 10))


@contextmanager
def restored(dumps: Path, place: Path) -> Iterator[ModuleType]:
    """Restore the files of a folder in the current directory, `place`, and import the program that works on them."""
    for dump in dumps.glob("*.sql"):
        with closing(sqlite3.connect(place / f"{dump.stem}.db")) as database:
            database.executescript(dump.read_text(encoding="utf-8"))
            (has_store,) = database.execute("SELECT count(*) FROM onceonly_schema WHERE component = 'store'").fetchone()
        if has_store:
            run_in_thread(upgrade_store, place / f"{dump.stem}.db")
    sys.modules.pop(PROGRAM, None)  # its endpoints belong to the directory in which it was imported
    yield import_module(PROGRAM)
    sys.modules.pop(PROGRAM, None)


def run_in_thread(task: Callable[[Path], Coroutine[object, object, None]], file: Path) -> None:
    """Run a coroutine although an event loop may be running here."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, task(file)).result()


async def upgrade_store(file: Path) -> None:
    """Do what `onceonly schema upgrade` does for the store of a file."""
    database = await open_database(f"sqlite:///{file}", clock=LIVE.clock)
    try:
        await upgrade(database, SCHEMA)
    finally:
        await database.close()


def ask(file: str, query: str) -> list[tuple[Any, ...]]:
    """Ask one of the files."""
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()
