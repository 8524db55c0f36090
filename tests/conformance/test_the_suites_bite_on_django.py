"""Units on Django's connection, each broken in one way, are caught by a rule of the suite for stores."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Table

from onceonly_conformance.store_suite import StoreSuite
from onceonly_conformance.suite import broken
from tests.conformance.django_subjects import DjangoSubject
from tests.conformance.sql_subjects import make_tables
from tests.django_project import alias_of

from django.db import connections  # isort: skip - Django is set up by the subjects

from onceonly.integrations.django.unit_resources import DjangoResources  # isort: skip - the same
from onceonly.integrations.django.unit_transactions import DjangoTransaction  # isort: skip - the same
from onceonly.integrations.django.units import DjangoUnits  # isort: skip - the same


class Sound(DjangoUnits):
    """Keeps every promise. Opens transactions of a class that a broken one replaces."""

    transactions: ClassVar[type[DjangoTransaction]] = DjangoTransaction

    async def open(self, *_: Any) -> DjangoTransaction:
        """Open one of the class."""
        return self.transactions(self.home, self.home.threads.take())


class WithoutBlock(DjangoTransaction):
    """Opens no block, so each statement is committed at once."""

    def _begin(self) -> None:
        super()._begin()
        self._atomic.__exit__(None, None, None)
        self._atomic = None


class CommittingDrop(DjangoTransaction):
    """Commits what was given up."""

    def _roll_back(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            atomic.__exit__(None, None, None)
        connections[self.alias].run_on_commit = []


class WithoutRecords(DjangoTransaction):
    """Loses the records."""

    def insert_last(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert nothing."""


class HoldingDrop(DjangoTransaction):
    """Keeps the block of a unit that was given up open."""

    def _roll_back(self) -> None: ...

    def _release(self) -> None: ...


class WithoutSavepoints(Sound):
    """Encloses no handler."""

    def resources(self, transaction: DjangoTransaction, *_: Any, **__: Any) -> DjangoResources:
        """Give resources of a unit that is not isolated."""
        return DjangoResources(transaction, isolated=False)


class SilentResources(DjangoResources):
    """Swallows what handlers raise."""

    async def run_sync(self, function: Callable[..., Any], *_: Any, **__: Any) -> object:
        """Run it, and report nothing."""
        try:
            return await super().run_sync(function)
        except ZeroDivisionError:
            return None


class Swallowing(Sound):
    """Swallows what handlers raise."""

    def resources(self, transaction: DjangoTransaction, *_: Any, isolated: bool, **__: Any) -> DjangoResources:
        """Give such resources."""
        return SilentResources(transaction, isolated=isolated)


def opening(kind: type[DjangoTransaction]) -> type[Sound]:
    """Return units whose transactions are of a class."""
    return type(kind.__name__, (Sound,), {"transactions": kind})


BROKEN = [
    (opening(WithoutBlock), "nothing_is_visible_before_commit"),
    (opening(WithoutBlock), "abandon_leaves_nothing"),
    (opening(CommittingDrop), "abandon_leaves_nothing"),
    (opening(WithoutRecords), "a_handled_message_with_effects_is_pending"),
    (opening(WithoutRecords), "commit_makes_everything_visible_together"),
    (opening(HoldingDrop), "an_abandoned_unit_holds_nobody_back"),
    (WithoutSavepoints, "a_failed_isolated_attempt_is_undone_alone"),
    (Swallowing, "a_synchronous_handlers_own_error_passes_through"),
]


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[str]:
    """Give a file of this test an alias. A unit that is not given back waits for its lock for a moment only."""
    with alias_of(f"bites_{uuid4().hex[:8]}", f"sqlite:///{tmp_path / 'django.db'}", OPTIONS={"timeout": 0.2}) as found:
        yield found


@pytest.mark.parametrize(("kind", "named"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
async def test_units_that_are_broken_are_caught(kind: type[Sound], named: str, alias: str, tmp_path: Path) -> None:
    """The same units keep the rule when they are not broken."""
    await make_tables(tmp_path / "django.db")

    def suite(units: type[DjangoUnits]) -> StoreSuite:
        class Subject(DjangoSubject):
            kind = units

        class Brittle(StoreSuite):
            patience = 5.0

            @asynccontextmanager
            async def open_store(self) -> AsyncIterator[DjangoSubject]:
                async with Subject.open(tmp_path / "django.db") as subject:
                    subject.alias = alias
                    await subject.empty()
                    yield subject

        return Brittle()

    assert not await broken(suite(Sound), f"test_{named}")
    assert await broken(suite(kind), f"test_{named}")
