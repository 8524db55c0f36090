"""The databases on which the tests of Django run, each with its tables, under an alias."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.django_project import alias_of, set_up
from tests.servers.available import mariadb_database, postgresql_database

set_up()

from django.core.management import call_command  # noqa: E402 - Django is set up before

PLACES = ("sqlite", "postgresql", "mariadb")


@contextmanager
def migrated(place: str, folder: Path, *, suffix: str = "", app: str = "", **settings: Any) -> Iterator[str]:
    """Make a database for a block, and return its alias: the name of the place and a suffix.

    It has the tables of all apps, or of one. A file is made in the folder. `settings` are those of DATABASES.
    """
    with ExitStack() as stack:
        urls: dict[str, Callable[[], str]] = {
            "sqlite": lambda: f"sqlite:///{folder / 'shop.db'}",
            "postgresql": lambda: stack.enter_context(postgresql_database()),
            "mariadb": lambda: stack.enter_context(mariadb_database()),
        }
        alias = stack.enter_context(alias_of(f"{place}{suffix}", urls[place](), **settings))
        call_command("migrate", *filter(None, [app]), database=alias, run_syncdb=not app, verbosity=0)
        yield alias
