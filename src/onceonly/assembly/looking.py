"""Looking at a database without creating it: for commands and pages that only read."""

from pathlib import Path
from typing import Any

from onceonly.config.location import Location, is_engine, scheme_of, shown
from onceonly.model.errors import SetupError


def refuse_missing(setting: Any) -> None:
    """Make sure that a SQLite file is there: a command that only looks makes none. Raises SetupError."""
    if missing := missing_file(setting):
        raise SetupError(missing)


def looked_at(setting: Any) -> Any:
    """Give a database setting with which a command that only looks makes no file and no tables. Raises SetupError."""
    refuse_missing(setting)
    url = setting.setting if isinstance(setting, Location) else setting
    if not isinstance(url, str) or not _is_sqlite(url) or "create=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}create=false"


def missing_file(setting: Any) -> str:
    """Return an error for a SQLite URL or engine whose file is missing; empty if it exists, and for everything else."""
    setting = setting.setting if isinstance(setting, Location) else setting
    if not is_engine(setting) and not (isinstance(setting, str) and _is_sqlite(setting)):
        return ""
    from onceonly.sql.database import place_of as named_place  # noqa: PLC0415 - imports SQLAlchemy

    url = named_place(setting).url
    file = url.database if url.get_backend_name() == "sqlite" else None
    if not file or file == ":memory:" or file.startswith("file:") or Path(file).exists():
        return ""
    place = shown(setting) if isinstance(setting, str) else file
    return (
        f"database file {place} does not exist: `onceonly schema create module:endpoint` creates it, and so does the first run"
    )


def _is_sqlite(url: str) -> bool:
    return scheme_of(url).startswith("sqlite")
