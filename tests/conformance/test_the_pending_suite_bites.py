"""Every rule about lists of pending documents fails on a broken adapter; every broken adapter is caught."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.ports.documents import Documents
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.suite import broken, rules
from tests.broken_adapters import pending_lists as lists
from tests.conformance.memory_subjects import CutDriver, MemoryPlace

BROKEN = {
    lists.Unlisted: ["a_good_place_has_a_list"],
    lists.Common: ["a_pending_document_is_listed_for_its_endpoints"],
    lists.ByKey: ["the_earliest_come_first"],
    lists.Inclusive: ["the_earliest_come_first"],
    lists.Skipping: ["pages_follow_each_other"],
    lists.Searching: ["a_page_goes_on_behind_an_entry_that_is_gone"],
    lists.Clinging: [
        "a_document_that_is_no_longer_pending_is_not_listed",
        "a_document_stays_listed_for_the_endpoints_that_are_left",
    ],
    lists.Later: ["a_write_whose_answer_was_lost_is_listed", "the_list_is_as_the_documents_are"],
    lists.Hasty: ["a_refused_write_changes_no_list"],
    lists.Ghostly: ["a_deleted_document_is_not_pending"],
    lists.FirstFew: ["very_many_are_listed"],
    lists.Caseless: ["listed_keys_are_exact"],
}
BITES = [pytest.param(kind, f"test_{rule}", id=f"{kind.__name__}-{rule}") for kind, found in BROKEN.items() for rule in found]


def suite_of(kind: type[MemoryDocuments]) -> PendingListSuite:
    """Make a suite that runs on these documents, in a world of its own."""

    class Place(MemoryPlace):
        async def documents(self) -> Documents:
            return kind(self.driver)

        async def cut(self, moment: Moment) -> Documents:
            return kind(CutDriver(self.driver, moment))

    class Bent(PendingListSuite):
        patience: ClassVar[float] = 0.2
        """What the broken list lacks never comes."""

        @asynccontextmanager
        async def open_documents(self) -> AsyncIterator[MemoryPlace]:
            yield Place()

    return Bent()


@pytest.mark.parametrize(("kind", "rule"), BITES)
async def test_the_rule_fails_on_the_broken_list(kind: type[MemoryDocuments], rule: str) -> None:
    """And what it fails on is the promise, not a mistake in the adapter's code."""
    assert await broken(suite_of(kind), rule)


@pytest.mark.parametrize("rule", rules(PendingListSuite))
async def test_the_rule_passes_on_the_list_itself(rule: str) -> None:
    """So it is the broken call that the others fail on."""
    assert not await broken(suite_of(MemoryDocuments), rule)


def test_every_rule_bites_somewhere() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for found in BROKEN.values() for rule in found} == set(rules(PendingListSuite))
