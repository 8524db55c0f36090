"""The write-ahead log: it grows beside a reader that stays, which is logged, and is truncated when the reader is gone."""

import logging
import sqlite3
from pathlib import Path

import pytest

from onceonly.adapters.sqlite import dialect
from onceonly.sql.store import SqlStore
from tests.log_events import events
from tests.sql.harness import handle, look, message

EVENT = "write-ahead log is large, a reader keeps it from being emptied"


def size(file: Path) -> int:
    """Return the size of the log."""
    return Path(f"{file}-wal").stat().st_size


async def test_a_log_that_a_reader_made_large_is_logged_and_then_truncated(
    file: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader and the writers are not disturbed, and the event comes once."""
    database = store._database
    large = size(file) + 100_000
    monkeypatch.setattr(dialect, "LARGE_LOG", large)
    caplog.set_level(logging.WARNING)
    reader = sqlite3.connect(file)
    reader.execute("BEGIN")
    before = reader.execute("SELECT COUNT(*) FROM onceonly_claims").fetchone()
    assert await database.shrink_log() == 0
    number = 0
    while size(file) < large:
        number += 1
        await handle(store, message(f"m{number}"))
    unit = await store.begin([message("open")])
    assert await database.shrink_log() == 0  # it waits for no writer either
    unit.abandon()
    for _ in range(2):
        assert await database.shrink_log() == 0
    assert events(caplog.records) == [EVENT]
    assert reader.execute("SELECT COUNT(*) FROM onceonly_claims").fetchone() == before
    reader.close()
    assert await database.shrink_log() == 1
    assert size(file) == 0
    await handle(store, message("after"))
    assert await look(store, message("m1"), message("after")) == {"done": ["m1", "after"]}
