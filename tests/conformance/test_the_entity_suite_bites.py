"""Every rule about entities of units fails on a broken store, and every broken store is caught."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from onceonly_conformance.entity_suite import EntityStoreSuite
from onceonly_conformance.suite import broken, rules
from tests.broken_adapters import entities
from tests.conformance.sql_subjects import SqlSubject, make_tables

STORES: dict[type[entities.EntityStores], list[str]] = {
    entities.UndeletingStore: [
        "the_next_unit_loads_what_was_committed",
        "entities_of_one_unit_are_separate",
        "very_many_entities_change_at_once",
    ],
    entities.FirstEntityStore: ["entities_of_one_unit_are_separate"],
    entities.FirstRequestStore: ["very_many_entities_change_at_once"],
    entities.FirstPacketStore: ["large_entities_change_at_once"],
    entities.SnapshotStore: ["an_entity_of_several_messages_has_one_state"],
    entities.CachingStore: ["an_abandoned_unit_changes_no_entity"],
    entities.GenerousStore: ["a_unit_loads_no_other_entity"],
    entities.EarlyStore: ["of_units_that_change_an_entity_none_overwrites_another"],
    entities.CuttingStore: ["an_entity_with_a_key_too_long_is_refused"],
}


def suite_of(kind: type[entities.EntityStores], place: Path) -> EntityStoreSuite:
    """Make the suite for a broken store in a SQLite file."""

    class Brittle(EntityStoreSuite):
        patience: ClassVar[float] = 10.0

        @asynccontextmanager
        async def open_store(self) -> AsyncIterator[entities.EntityStores]:
            async with SqlSubject.open(place) as subject:
                await subject.empty()
                yield kind(subject)

    return Brittle()


@pytest.mark.parametrize("kind", [*STORES, entities.EntityStores])
@pytest.mark.slow
async def test_a_broken_store_fails_exactly_the_rules_that_it_breaks(kind: type[entities.EntityStores], tmp_path: Path) -> None:
    """One that only passes its calls on fails none."""
    await make_tables(tmp_path / "store.db")
    suite = suite_of(kind, tmp_path / "store.db")
    failed = {rule.removeprefix("test_") for rule in rules(EntityStoreSuite) if await broken(suite, rule)}
    assert failed == set(STORES.get(kind, []))


def test_every_rule_has_a_store_that_breaks_it() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for named in STORES.values() for rule in named} == set(rules(EntityStoreSuite))
