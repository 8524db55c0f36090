"""Every rule about documents that are saved together fails on a broken adapter; every broken adapter is caught."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.ports.documents import DocumentAddress, Documents
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.saves_together_suite import KEYS, Key, SavesTogetherSuite
from onceonly_conformance.suite import broken, rules
from tests.broken_adapters import saved_together as together
from tests.conformance.memory_subjects import CutDriver, MemoryPlace

BROKEN = {
    together.Unable: ["a_good_place_can_write_together"],
    together.Partial: ["all_are_written"],
    together.Eager: ["a_stale_document_of_the_store_writes_nothing", "a_writer_that_loses_its_own_document_writes_no_other"],
    together.InTurn: [
        "a_stale_document_of_the_application_writes_nothing",
        "a_document_of_the_application_that_must_not_exist_writes_nothing",
        "no_half_is_ever_seen",
        "a_write_whose_answer_is_lost_is_whole",
    ],
    together.Versionless: ["a_stale_document_of_the_application_writes_nothing", "one_of_two_writers_wins"],
    together.Overwriting: ["a_document_of_the_application_that_must_not_exist_writes_nothing"],
    together.Inserting: ["an_unconditional_write_creates_and_replaces"],
    together.Merging: ["a_replacement_leaves_nothing_of_the_document_before"],
    together.Emptying: ["a_document_is_deleted_by_its_version", "a_document_is_created_if_it_is_missing"],
    together.Quoting: ["a_document_is_replaced_by_its_version"],
    together.Hashing: ["versions_never_repeat"],
    together.Annotated: ["a_document_comes_back"],
    together.Keyless: ["a_document_comes_back"],
    together.OneWay: ["a_document_that_was_read_can_be_put_back"],
    together.Trusting: ["a_key_field_that_differs_from_the_key_is_refused"],
    together.Imprecise: ["a_document_comes_back"],
    together.Picky: ["a_document_comes_back"],
    together.Inventing: ["missing_documents_are_left_out"],
    together.Caseless: ["addresses_are_exact"],
    together.Joining: ["addresses_are_exact"],
    together.Textual: ["addresses_are_exact"],
    together.OneCollection: ["addresses_are_exact"],
    together.OtherVersions: ["the_store_loads_what_was_written_together"],
    together.Unconditional: ["without_writes_the_document_is_saved_alone"],
    together.Mixed: ["documents_of_the_application_are_not_the_stores"],
    together.Unlisted: ["a_document_that_is_saved_together_is_listed_as_pending"],
    together.Unplaced: ["documents_of_partitions_are_separate"],
    together.Partitioned: ["documents_of_partitions_are_separate"],
    together.Boundless: ["as_many_as_promised_are_written", "a_document_that_the_service_never_takes_is_refused"],
    together.Halving: ["as_many_as_promised_are_written", "a_document_that_the_service_never_takes_is_refused"],
    together.Undying: ["an_expiry_is_accepted"],
    together.Hasty: ["an_expiry_is_accepted"],
    together.Unlocked: ["one_of_two_writers_wins", "no_increment_is_lost"],
    together.Guessing: ["a_write_without_a_version_is_never_refused_for_one"],
    together.Lying: ["a_write_that_never_arrived_is_nothing"],
    together.Optimistic: ["a_write_whose_answer_is_lost_is_whole"],
    together.Repeating: ["a_write_whose_answer_is_lost_is_whole"],
}
BITES = [pytest.param(kind, f"test_{rule}", id=f"{kind.__name__}-{rule}") for kind, found in BROKEN.items() for rule in found]


def suite_of(kind: type[MemoryDocuments], *, is_separate: bool = False) -> SavesTogetherSuite:
    """Make a suite that runs on these documents, in a world of its own."""
    keyed = kind(MemoryPlace().driver) if issubclass(kind, together.Keyed) else None

    class Place(MemoryPlace):
        async def documents(self) -> Documents:
            return kind(self.driver)

        async def cut(self, moment: Moment) -> Documents:
            return kind(CutDriver(self.driver, moment))

    class Bent(SavesTogetherSuite):
        patience: ClassVar[float] = 0.2
        """What the broken list lacks never comes."""
        keys: ClassVar[tuple[Key, ...]] = (*KEYS, (7,), ("a", "b"), ("a/b",))
        separates: ClassVar[bool] = is_separate

        @asynccontextmanager
        async def open_documents(self) -> AsyncIterator[MemoryPlace]:
            yield Place()

        def collections(self) -> Sequence[str]:
            return ("", "receipts")

        def key_fields(self, key: str, address: DocumentAddress) -> Mapping[str, Any]:
            return keyed.key_of(address) if keyed else {}

    return Bent()


@pytest.mark.parametrize(("kind", "rule"), BITES)
async def test_the_rule_fails_on_the_broken_documents(kind: type[MemoryDocuments], rule: str) -> None:
    """And what it fails on is the promise, not a mistake in the adapter's code."""
    assert await broken(suite_of(kind), rule)


@pytest.mark.parametrize("rule", rules(SavesTogetherSuite))
@pytest.mark.parametrize("kind", [MemoryDocuments, together.Keyed])
async def test_the_rule_passes_on_the_documents_themselves(kind: type[MemoryDocuments], rule: str) -> None:
    """So it is the broken call that the others fail on."""
    assert not await broken(suite_of(kind), rule)


async def test_documents_that_should_be_separate_are_checked() -> None:
    """Those of the application, in each partition."""
    rule = "test_documents_of_partitions_are_separate"
    assert not await broken(suite_of(together.Partitioned, is_separate=True), rule)
    assert await broken(suite_of(MemoryDocuments, is_separate=True), rule)


def test_every_rule_bites_somewhere() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for found in BROKEN.values() for rule in found} == set(rules(SavesTogetherSuite))
