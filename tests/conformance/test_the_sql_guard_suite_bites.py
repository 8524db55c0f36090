"""Every rule about the database transaction of a unit fails on a broken store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onceonly_conformance.sql_guard_suite import SqlGuardSuite
from onceonly_conformance.suite import broken, rules
from tests.broken_adapters import transactions
from tests.broken_adapters.wrapped_stores import WrappedStores
from tests.conformance.sql_subjects import SqlSubject, make_tables

STORES: dict[type[WrappedStores], list[str]] = {
    transactions.SplittingStore: ["a_handler_never_commits_its_data_without_its_message"],
    transactions.LeakingStore: [
        "a_handler_never_commits_its_data_without_its_message",  # its second message cannot begin
        "a_transaction_that_was_ended_disturbs_no_other_unit",
    ],
    transactions.EndlessStore: [
        "a_failed_handler_leaves_nothing_that_works",
        "what_a_handler_is_given_ends_with_it",
    ],
    WrappedStores: [],
}


@pytest.mark.parametrize("kind", STORES)
async def test_a_broken_store_fails_exactly_the_rules_that_it_breaks(kind: type[WrappedStores], tmp_path: Path) -> None:
    """One that only passes its calls on fails none."""
    await make_tables(tmp_path / "store.db")

    class Brittle(SqlGuardSuite):
        @asynccontextmanager
        async def open_store(self) -> AsyncIterator[Any]:
            async with SqlSubject.open(tmp_path / "store.db") as subject:
                await subject.empty()
                wrapped: Any = kind(subject)
                wrapped.database = subject.database
                yield wrapped

    failed = {rule.removeprefix("test_") for rule in rules(SqlGuardSuite) if await broken(Brittle(), rule)}
    assert failed == set(STORES[kind])


def test_every_rule_has_a_store_that_breaks_it() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for named in STORES.values() for rule in named} == set(rules(SqlGuardSuite))
