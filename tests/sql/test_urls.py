"""Database URLs: what is read from them, and what is refused with words that help."""

from pathlib import Path

import pytest

from onceonly.model.errors import SetupError
from onceonly.sql.database import open_database
from onceonly.sql.options import checked_prefix
from onceonly.sql.urls import read_url
from onceonly_conformance.clock import ManualClock
from tests.sql.harness import opened


def test_options_are_taken_out_of_the_url() -> None:
    """What is left is the driver's."""
    place = read_url("sqlite:////var/shop.db?prefix=shop_&create=false&timeout=2.5")
    assert (place.prefix, place.create, place.timeout) == ("shop_", False, 2.5)
    assert str(place.url) == "sqlite:////var/shop.db"


def test_without_options_there_are_defaults() -> None:
    """Tables begin with the library's own name."""
    place = read_url("sqlite:///shop.db")
    assert (place.prefix, place.create, place.timeout) == ("onceonly_", True, 5.0)


@pytest.mark.parametrize("prefix", ["a", "shop_", "a1_b2_", "x" * 31])
def test_plain_prefixes_are_allowed(prefix: str) -> None:
    """Lower-case letters, digits and underscores need no quoting anywhere."""
    assert checked_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix", ["", "1a", "_a", "A", "a-b", 'a"; DROP TABLE orders; --', "a b", "a.b", "é", "a\n", "x" * 40]
)
async def test_any_other_prefix_is_refused(prefix: str) -> None:
    """No SQL is ever built from an unchecked name."""
    with pytest.raises(SetupError, match="prefix"):
        checked_prefix(prefix)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///shop.db?prefix=a%22b", "prefix"),
        ("sqlite:///shop.db?prefix=a&prefix=b", "more than once"),
        ("sqlite:///shop.db?mode=ro", "unknown option 'mode'"),
        ("sqlite:///shop.db?create=perhaps", "true or false"),
        ("sqlite:///shop.db?timeout=long", "seconds"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///no/such/directory/shop.db", "directory"),
        ("oracle://host/shop", "no adapter for oracle"),
        ("nonsense", "not a URL: write SCHEME://"),
    ],
)
async def test_a_url_that_cannot_work_is_refused_at_once(url: str, says: str) -> None:
    """With what to do instead."""
    with pytest.raises(SetupError, match=says):
        await open_database(url, clock=ManualClock())


async def test_a_password_is_never_repeated() -> None:
    """Errors end in logs."""
    for url in ("oracle://me:secret@host/shop", "://me:secret@host", "sqlite:///shop.db?password=secret"):
        with pytest.raises(SetupError) as refused:
            await open_database(url, clock=ManualClock())
        assert "secret" not in str(refused.value)


async def test_relative_files_are_found_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are relative, four absolute."""
    monkeypatch.chdir(tmp_path)
    async with opened("sqlite:///shop.db", tables=True):
        assert (tmp_path / "shop.db").exists()
