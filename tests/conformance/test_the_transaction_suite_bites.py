"""Every rule about transactions fails on a broken adapter; every broken adapter is caught.

Those on documents in memory keep all of them; one call of theirs is broken.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from onceonly.documents.store import DocumentStore
from onceonly_conformance.on_documents import RETENTION, DocumentTransactionSuite, TransactionsOnDocuments
from onceonly_conformance.suite import ENDPOINT, broken, rules
from tests.conformance.broken_transactions import (
    Abandoning,
    Blindfolded,
    Careless,
    Confusing,
    Cutting,
    Deaf,
    Eager,
    EmptyAnswer,
    Forgotten,
    Grasping,
    Gravedigger,
    Hasty,
    Haunted,
    Impatient,
    Latest,
    NeedsData,
    Oblivious,
    Overwriting,
    Own,
    Patient,
    Reloading,
    Reserving,
    Shared,
    ShortAnswer,
    Silent,
    Sound,
    Stubborn,
    Timeless,
    Touching,
    Unbound,
    Unburied,
    Undeleting,
    Undertaker,
    Unfenced,
    Unfinished,
    Versioned,
    WithoutAnswer,
    WithoutData,
    WithoutRecord,
    spoiling,
)
from tests.conformance.memory_subjects import MemoryPlace

BROKEN: dict[type, list[str]] = {
    spoiling(WithoutRecord): ["a_commit_makes_everything_final", "messages_alone_can_be_committed"],
    spoiling(WithoutData): ["a_commit_makes_everything_final", "data_alone_can_be_committed"],
    spoiling(WithoutAnswer): ["a_commit_makes_everything_final", "an_answer_is_exact", "keys_are_exact"],
    spoiling(EmptyAnswer): ["a_key_may_be_kept_without_an_answer"],
    spoiling(ShortAnswer): ["an_answer_is_exact"],
    spoiling(Eager): ["nothing_is_seen_before_the_commit"],
    spoiling(Stubborn): ["a_transaction_ends_once", "what_is_abandoned_cannot_be_committed"],
    spoiling(Abandoning): ["nothing_is_left_of_what_is_abandoned"],
    spoiling(Timeless): ["a_late_commit_fails"],
    spoiling(Hasty): ["a_commit_in_time_is_not_late"],
    spoiling(NeedsData): ["nothing_at_all_can_be_committed", "messages_alone_can_be_committed"],
    spoiling(Overwriting): ["of_two_that_change_an_entity_none_overwrites_the_other"],
    spoiling(Reloading): ["an_entity_is_loaded_once", "a_second_entity_is_refused"],
    spoiling(Touching): ["an_entity_that_is_only_looked_at_stays"],
    spoiling(Undeleting): ["an_entity_is_there_for_the_next_transaction"],
    spoiling(Cutting): ["an_entity_with_a_key_too_long_is_refused"],
    spoiling(Unburied): ["what_is_buried_cannot_be_committed"],
    Unfinished: ["a_known_key_has_the_record_until_it_is_forgotten"],
    Forgotten: ["a_key_that_is_committed_is_known", "of_many_attempts_with_one_key_one_is_committed"],
    Patient: ["who_has_a_key_is_waited_for_no_longer_than_asked"],
    Grasping: ["a_cancelled_opening_holds_nobody_back"],
    Latest: ["a_key_that_is_committed_is_known"],
    Confusing: ["keys_are_exact"],
    Shared: ["a_key_is_one_endpoints", "a_key_is_found_by_whoever_looks_after_its_endpoint"],
    Reserving: ["a_key_nobody_committed_is_not_there"],
    Unbound: ["a_key_is_committed_once_whichever_entity_its_attempts_take"],
    Deaf: ["an_attempt_has_a_record_once_it_is_committed", "a_tombstone_says_that_it_is_over"],
    Own: ["a_key_is_found_by_whoever_looks_after_its_endpoint"],
    Gravedigger: ["what_is_committed_cannot_be_buried", "a_tombstone_says_that_it_is_over"],
    Undertaker: ["a_buried_attempt_does_not_block_its_key"],
    Impatient: ["a_tombstone_outlives_the_deadline"],
    Silent: ["what_is_buried_cannot_be_committed", "a_tombstone_says_that_it_is_over"],
    Unfenced: ["a_fenced_attempt_is_never_committed", "a_fence_outlasts_the_fences_of_others"],
    Versioned: ["an_attempt_is_fenced_before_it_has_loaded_anything"],
    Haunted: ["a_fence_may_be_repeated", "a_fence_outlasts_the_fences_of_others"],
    Blindfolded: ["a_fence_gives_the_record_of_what_is_committed"],
    Careless: ["a_dispatched_record_is_forgotten", "an_attempt_with_a_key_has_none_after_its_dispatch"],
    Oblivious: ["an_attempt_has_a_record_once_it_is_committed"],
}
ALSO: dict[str, list[str]] = {
    "WithoutRecord": [
        "an_attempt_with_a_key_has_none_after_its_dispatch",
        "a_known_key_has_the_record_until_it_is_forgotten",
        "a_fence_may_be_repeated",
        "a_fence_gives_the_record_of_what_is_committed",
        "an_attempt_has_a_record_once_it_is_committed",
        "an_attempt_is_fenced_before_it_has_loaded_anything",
        "what_is_buried_cannot_be_committed",
        "what_is_committed_cannot_be_buried",
    ],
    "WithoutData": [
        "a_fence_may_be_repeated",
        "a_commit_in_time_is_not_late",
        "a_dispatched_record_is_forgotten",
        "a_second_entity_is_refused",
        "a_transaction_ends_once",
        "an_entity_is_there_for_the_next_transaction",
        "an_entity_that_is_only_looked_at_stays",
        "nothing_is_left_of_what_is_abandoned",
        "of_many_attempts_with_one_key_one_is_committed",
        "of_two_that_change_an_entity_none_overwrites_the_other",
    ],
    "WithoutAnswer": [
        "a_dispatched_record_is_forgotten",
        "a_key_is_one_endpoints",
        "a_key_may_be_kept_without_an_answer",
        "a_key_that_is_committed_is_known",
        "who_has_a_key_is_waited_for_no_longer_than_asked",
    ],
    "Eager": [
        "a_fence_may_be_repeated",
        "a_fence_outlasts_the_fences_of_others",
        "a_late_commit_fails",
        "nothing_is_left_of_what_is_abandoned",
        "what_is_buried_cannot_be_committed",
    ],
    "Abandoning": [
        "a_buried_attempt_does_not_block_its_key",
        "a_tombstone_outlives_the_deadline",
        "a_cancelled_opening_holds_nobody_back",
        "a_fence_may_be_repeated",
        "what_is_abandoned_cannot_be_committed",
        "who_has_a_key_is_waited_for_no_longer_than_asked",
    ],
    "NeedsData": [
        "an_attempt_with_a_key_has_none_after_its_dispatch",
        "a_buried_attempt_does_not_block_its_key",
        "a_key_is_committed_once_whichever_entity_its_attempts_take",
        "a_key_is_one_endpoints",
        "an_answer_is_exact",
        "an_attempt_is_fenced_before_it_has_loaded_anything",
        "keys_are_exact",
        "what_is_buried_cannot_be_committed",
        "who_has_a_key_is_waited_for_no_longer_than_asked",
    ],
    "Unburied": ["an_attempt_is_fenced_before_it_has_loaded_anything"],
    "Unbound": [
        "a_buried_attempt_does_not_block_its_key",
        "a_commit_makes_everything_final",
        "a_dispatched_record_is_forgotten",
        "a_key_may_be_kept_without_an_answer",
        "a_key_that_is_committed_is_known",
        "a_known_key_has_the_record_until_it_is_forgotten",
        "of_many_attempts_with_one_key_one_is_committed",
    ],
    "Deaf": [
        "an_attempt_with_a_key_has_none_after_its_dispatch",
        "a_commit_makes_everything_final",
        "a_fence_gives_the_record_of_what_is_committed",
        "a_tombstone_outlives_the_deadline",
        "messages_alone_can_be_committed",
        "what_is_committed_cannot_be_buried",
    ],
    "Silent": ["a_tombstone_outlives_the_deadline", "what_is_committed_cannot_be_buried"],
    "Blindfolded": ["a_fence_may_be_repeated"],
    "Unfenced": ["an_attempt_is_fenced_before_it_has_loaded_anything"],
    "Careless": ["a_known_key_has_the_record_until_it_is_forgotten", "an_attempt_has_a_record_once_it_is_committed"],
}
"""Further rules that an adapter breaks, because they depend on the one that it is named for."""
ENDLESS = {"Overwriting", "Forgotten", "Reserving"}
"""Adapters on which other rules fail or do not end, depending on timing."""
BITES = [
    pytest.param(spoilt, f"test_{rule}", id=f"{spoilt.__name__}-{rule}") for spoilt, found in BROKEN.items() for rule in found
]


def suite_of(spoilt: type) -> DocumentTransactionSuite:
    """Make a suite that runs on these transactions, or this store, in a world of its own."""
    is_store = issubclass(spoilt, DocumentStore)

    class Subject(TransactionsOnDocuments):
        async def transactions(self, endpoint: str = ENDPOINT) -> Any:
            kind: Callable[..., Any] = Sound if is_store else spoilt
            return kind(await self.store(endpoint), retention=RETENTION // timedelta(milliseconds=1))

        async def store(self, endpoint: str = ENDPOINT) -> DocumentStore:
            kind: Callable[..., DocumentStore] = spoilt if is_store else DocumentStore
            return kind(await self.subject.documents(), endpoint, clock=self, history=RETENTION)

    class Bent(DocumentTransactionSuite):
        @asynccontextmanager
        async def open_attempts(self) -> AsyncIterator[Any]:
            yield Subject(MemoryPlace())

    return Bent()


@pytest.mark.parametrize(("spoilt", "rule"), BITES)
async def test_the_rule_fails_on_the_broken_transactions(spoilt: type, rule: str) -> None:
    """And what it fails on is the promise, not a mistake in the adapter's code."""
    Abandoning.left.clear()
    Grasping.grasped.clear()
    assert await broken(suite_of(spoilt), rule)


@pytest.mark.parametrize("spoilt", [each for each in BROKEN if each.__name__ not in ENDLESS], ids=lambda each: each.__name__)
async def test_the_broken_transactions_fail_no_other_rule(spoilt: type) -> None:
    """A rule that fails for another reason would prove nothing about the promise that it is named for."""
    Abandoning.left.clear()
    Grasping.grasped.clear()
    suite = suite_of(spoilt)
    failed = {rule.removeprefix("test_") for rule in rules(DocumentTransactionSuite) if await broken(suite, rule)}
    assert failed == {*BROKEN[spoilt], *ALSO.get(spoilt.__name__, [])}


@pytest.mark.parametrize("rule", rules(DocumentTransactionSuite))
async def test_the_rule_passes_on_the_transactions_themselves(rule: str) -> None:
    """So it is the spoiled call that the others fail on."""
    assert not await broken(suite_of(Sound), rule)


def test_every_rule_bites_somewhere() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for found in BROKEN.values() for rule in found} == set(rules(DocumentTransactionSuite))
