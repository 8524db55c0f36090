"""Tokens in the file of a SQLite store: a unit holds its write lock, so they are part of the unit or refused at start."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly import SetupError, Tokens
from onceonly.assembly import Settings, wire
from onceonly.ports.handlers import Handlers


def no_handlers(*_: object) -> Handlers:
    """Nothing is handled here."""
    raise AssertionError("the wiring goes on")


def settings(store: object, url: str) -> Settings:
    """Return an endpoint's settings with its tokens there."""
    return Settings(name="shop", store=store, transport="memory://one-file", deduplication=Tokens(url=url))


@pytest.mark.parametrize("options", ["", "?prefix=other_", "?timeout=1"])
async def test_tokens_in_the_stores_own_file_by_another_name_are_refused(tmp_path: Path, options: str) -> None:
    """Preparing one would wait for the lock that its own unit holds, in every unit that sends anything."""
    file = tmp_path / "shop.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    for store in (f"sqlite:///{file.parent}/./shop.db", engine):
        with pytest.raises(SetupError, match="leave url empty"):
            async with wire(settings(store, f"sqlite:///{file}{options}"), no_handlers):
                pass
    await engine.dispose()


@pytest.mark.parametrize("url", ["", "sqlite:///{}/shop.db", "sqlite:///{}/tokens.db"])
async def test_tokens_in_the_store_and_in_another_file_are_fine(tmp_path: Path, url: str) -> None:
    """By the very same name they are part of the unit; another file has a lock of its own."""
    with pytest.raises(AssertionError, match="the wiring goes on"):
        async with wire(settings(f"sqlite:///{tmp_path}/shop.db", url.format(tmp_path)), no_handlers):
            pass
