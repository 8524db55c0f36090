"""Every rule about dedup stores, tokens, artifacts and forgetting fails on a broken adapter; every broken adapter is caught."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from onceonly.model.errors import OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly_conformance.artifact_suite import ArtifactStoreSuite
from onceonly_conformance.dedup_suite import DedupSuite
from onceonly_conformance.forgetful_suite import ForgetfulRecordsSuite, ForgetfulStoreSuite
from onceonly_conformance.on_documents import dedup_and_token_subjects
from onceonly_conformance.store_subject import WholeStore
from onceonly_conformance.suite import Suite, broken, rules
from onceonly_conformance.token_suite import TokenSuite
from tests.broken_adapters import artifacts, dedup, forgetful, tokens
from tests.broken_adapters.document_contents import ExpiringDocuments
from tests.broken_adapters.document_writes import UpsertingDocuments
from tests.broken_adapters.wrapped_documents import (
    LateWriteDocuments,
    LostAnswerDocuments,
    StaleDocuments,
    WrappedDocuments,
    WrappedPlace,
)
from tests.broken_adapters.wrapped_stores import WrappedStores
from tests.conformance.document_store_subjects import DocumentStores
from tests.conformance.memory_effect_subjects import MemoryArtifactsPlace, MemoryDedup, MemoryTokenPlace
from tests.conformance.memory_subjects import MemoryPlace
from tests.conformance.sql_subjects import ForgettingSubject, make_tables

DEDUP = {
    dedup.BodilessDedup: ["a_fingerprint_is_remembered_with_its_key"],
    dedup.ClingingDedup: ["a_removed_key_has_no_fingerprint"],
    dedup.FirstCallDedup: ["a_key_without_a_fingerprint_takes_the_first_that_comes"],
    dedup.RenewingDedup: ["a_key_that_is_renewed_keeps_its_fingerprint"],
    dedup.PlainRenewingDedup: ["a_key_that_is_renewed_keeps_its_fingerprint"],
    dedup.LastBodyDedup: ["the_first_fingerprint_stays"],
    dedup.AgreeableDedup: ["a_key_never_added_is_not_remembered"],
    dedup.PrivateDedup: ["an_added_key_is_remembered_everywhere"],
    dedup.CachingDedup: ["an_added_key_is_seen_by_who_asked_before", "a_removed_key_is_forgotten_everywhere"],
    dedup.StrictDedup: ["adding_twice_is_fine"],
    dedup.FussyDedup: ["a_key_may_be_named_twice_in_one_call"],
    dedup.LockingDedup: ["many_may_add_a_key_at_once", "a_cancelled_add_may_be_made_again"],
    dedup.OnePageDedup: ["many_keys_at_once"],
    dedup.CaselessDedup: ["keys_are_exact"],
    dedup.SweepingDedup: ["removing_leaves_others", "nothing_is_a_fine_number_of_keys"],
    dedup.KeepingDedup: ["a_removed_key_is_forgotten_everywhere", "a_removed_key_may_be_added_again"],
    dedup.ExactingDedup: ["removing_what_is_not_there_is_harmless"],
    dedup.TombstoneDedup: ["a_removed_key_may_be_added_again"],
    dedup.HastyDedup: ["a_key_is_remembered_for_its_retention"],
    dedup.FirstAddDedup: ["adding_again_counts_the_retention_anew"],
    dedup.VagueDedup: [
        "an_add_that_is_cut_off_is_never_said_to_have_failed",
        "a_removal_that_is_cut_off_is_never_said_to_have_failed",
    ],
    dedup.TrustingDedup: ["a_message_behind_the_horizon_is_refused"],
    dedup.SuspiciousDedup: ["a_message_within_the_retention_is_decidable"],
    dedup.ThoroughDedup: ["a_message_without_an_instant_is_never_refused"],
    dedup.SternDedup: ["a_message_that_a_person_has_sent_back_is_not_refused"],
    dedup.HopelessDedup: ["a_message_far_in_the_future_is_refused"],
    dedup.TimelessDedup: ["a_message_from_the_future_is_known_until_it_is_old"],
    dedup.HopefulDedup: ["an_add_that_got_nowhere_is_no_success", "a_removal_that_got_nowhere_is_no_success"],
}

TOKENS = {
    tokens.AgreeableTokens: ["a_token_nobody_prepared_is_not_live"],
    tokens.EagerTokens: ["a_prepared_token_is_invisible_to_receivers"],
    tokens.UnitlessTokens: ["a_prepared_token_is_listed_with_its_owner_and_its_instant"],
    tokens.OneOwnerTokens: ["tokens_of_several_owners_are_prepared_at_once"],
    tokens.UndatedTokens: ["a_prepared_token_is_listed_with_its_owner_and_its_instant"],
    tokens.EntityTokens: ["an_owner_may_have_no_entity"],
    tokens.OverwritingTokens: [
        "an_id_that_is_prepared_cannot_be_prepared_again",
        "an_id_that_is_live_cannot_be_prepared_again",
    ],
    tokens.IgnoringTokens: ["an_id_that_is_prepared_cannot_be_prepared_again"],
    tokens.CachingTokens: ["an_activated_token_is_live_everywhere", "a_removed_token_is_gone_everywhere"],
    tokens.ListCachingTokens: ["an_activated_token_is_live_everywhere"],
    tokens.OthersTokens: ["who_prepared_a_token_may_activate_it", "who_knows_a_token_may_remove_it"],
    tokens.StrictTokens: ["activating_twice_is_fine", "removing_what_is_gone_is_harmless"],
    tokens.GreedyTokens: ["activating_leaves_others", "discarding_leaves_other_prepared_tokens"],
    tokens.UpsertTokens: ["activating_a_missing_token_makes_none", "a_consumed_token_never_comes_back"],
    tokens.TwoStepTokens: ["of_activating_and_removing_at_once_removing_wins"],
    tokens.EndpointBlindTokens: ["tokens_of_two_endpoints_are_two"],
    tokens.CaselessTokens: ["ids_are_exact"],
    tokens.OnePageTokens: ["many_tokens_at_once"],
    tokens.SweepingTokens: ["removing_leaves_others", "nothing_is_a_fine_number_of_tokens"],
    tokens.KeepingTokens: ["a_discarded_token_is_gone"],
    tokens.RuthlessTokens: ["discarding_leaves_a_live_token"],
    tokens.AgelessTokens: ["only_tokens_prepared_before_are_listed"],
    tokens.UnlimitedTokens: ["at_most_the_limit_is_listed"],
    tokens.LockingTokens: [
        "of_activating_and_discarding_at_once_one_wins",
        "many_may_activate_a_token_at_once",
        "cancelled_calls_may_be_made_again",
    ],
    tokens.VagueTokens: [
        "a_preparation_that_is_cut_off_is_never_said_to_have_failed",
        "an_activation_that_is_cut_off_is_never_said_to_have_failed",
        "a_removal_that_is_cut_off_is_never_said_to_have_failed",
    ],
    tokens.HopefulTokens: [
        "a_preparation_that_got_nowhere_is_no_success",
        "an_activation_that_got_nowhere_is_no_success",
        "a_removal_that_got_nowhere_is_no_success",
    ],
}

ARTIFACTS = {
    artifacts.StrictArtifacts: ["what_was_never_made_has_no_data", "unmaking_what_is_not_there_is_harmless"],
    artifacts.CachingArtifacts: ["what_was_made_is_there_for_everybody", "what_was_unmade_is_gone_for_everybody"],
    artifacts.PrivateArtifacts: ["what_was_made_is_there_for_everybody"],
    artifacts.NullArtifacts: ["data_may_be_empty"],
    artifacts.ShortArtifacts: ["data_may_be_large"],
    artifacts.TidyingArtifacts: ["names_are_exact"],
    artifacts.OnceArtifacts: ["making_the_same_again_is_fine"],
    artifacts.NumberingArtifacts: ["making_the_same_again_is_fine"],
    artifacts.KeepingArtifacts: ["what_was_unmade_is_gone_for_everybody"],
    artifacts.SweepingArtifacts: ["unmaking_leaves_others"],
    artifacts.BaseNameArtifacts: ["everything_made_is_listed"],
    artifacts.FolderArtifacts: ["a_list_holds_what_begins_with_the_prefix"],
    artifacts.GrowingArtifacts: ["a_thing_is_there_whole_or_not_at_all"],
    artifacts.ReservingArtifacts: ["a_cancelled_making_may_be_made_again"],
}

FORGETFUL = {
    forgetful.RememberingForgetful: ["nothing_is_left_of_a_forgotten_message", "a_forgotten_message_is_new"],
    forgetful.EffectsOnlyForgetful: ["every_record_is_to_be_forgotten"],
    forgetful.TokenLosingForgetful: ["a_record_gives_back_what_it_was_committed_with"],
    forgetful.HastyForgetful: ["a_message_without_effects_is_known_until_it_is_forgotten"],
    forgetful.SweepingForgetful: ["others_are_not_forgotten"],
    forgetful.TombstoneForgetful: ["forgetting_again_leaves_nothing_either"],
    forgetful.EarlyForgetful: ["looking_leaves_nothing"],
    forgetful.OverwritingForgetful: ["who_began_before_loses_although_nothing_is_left"],
    forgetful.UnwaitingForgetful: ["a_fence_without_the_message_stops_who_began_before"],
    forgetful.BlindForgetful: ["the_fence_gives_a_record"],
    forgetful.ClaimingForgetful: ["the_fence_leaves_nothing"],
}

TABLES: tuple[tuple[type[Suite], Any, type, dict[Any, list[str]]], ...] = (
    (DedupSuite, dedup, dedup.WrappedDedup, DEDUP),
    (TokenSuite, tokens, tokens.WrappedTokens, TOKENS),
    (ArtifactStoreSuite, artifacts, artifacts.WrappedArtifacts, ARTIFACTS),
    (ForgetfulStoreSuite, forgetful, forgetful.WrappedForgetful, FORGETFUL),
)
PASSING_ON = {
    dedup.WrappedDedup,
    dedup.DroppingDedup,
    tokens.WrappedTokens,
    artifacts.WrappedArtifacts,
    forgetful.WrappedForgetful,
}
BITES = [
    pytest.param(suite, adapter, f"test_{rule}", id=f"{adapter.__name__}-{rule}")
    for suite, _, _, table in TABLES
    for adapter, broken_rules in table.items()
    for rule in broken_rules
]
PLAIN = [
    pytest.param(suite, wrapper, rule, id=f"{wrapper.__name__}-{rule}")
    for suite, wrapper in (
        (DedupSuite, dedup.WrappedDedup),
        (DedupSuite, dedup.DroppingDedup),
        (TokenSuite, tokens.WrappedTokens),
        (ArtifactStoreSuite, artifacts.WrappedArtifacts),
        (ForgetfulStoreSuite, forgetful.WrappedForgetful),
    )
    for rule in rules(suite)
]


class Bent(Suite):
    """A suite whose adapter is wrapped. What has to wait without end does not wait long."""

    patience: ClassVar[float] = 0.2
    wrapper: Any = staticmethod(lambda subject: subject)

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[Any]:
        """Wrap the memory dedup store."""
        yield self.wrapper(MemoryDedup())

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[Any]:
        """Wrap the memory token store."""
        yield self.wrapper(MemoryTokenPlace())

    @asynccontextmanager
    async def open_artifacts(self) -> AsyncIterator[Any]:
        """Wrap artifacts in memory."""
        yield self.wrapper(MemoryArtifactsPlace())

    @asynccontextmanager
    async def open_forgetful_store(self) -> AsyncIterator[Any]:
        """Wrap a store on documents in memory."""
        yield self.wrapper(DocumentStores(history=None))


def bent(suite: type[Suite], wrapper: Any) -> Suite:
    """Make a suite that runs on this adapter, wrapped."""
    return type("Bent", (Bent, suite), {"wrapper": staticmethod(wrapper)})()


@pytest.mark.parametrize(("suite", "adapter", "rule"), BITES)
async def test_the_new_rule_fails_on_the_broken_adapter(suite: type[Suite], adapter: type, rule: str) -> None:
    """And what it fails on is the promise, not a mistake in the adapter's code."""
    assert await broken(bent(suite, adapter), rule)


@pytest.mark.parametrize(("suite", "table"), [(suite, table) for suite, _, _, table in TABLES])
async def test_every_new_rule_bites_somewhere(suite: type[Suite], table: dict[Any, list[str]]) -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for broken_rules in table.values() for rule in broken_rules} == set(rules(suite))


@pytest.mark.parametrize(("module", "plain", "table"), [rest for _, *rest in TABLES])
async def test_every_new_broken_adapter_is_in_the_table(module: Any, plain: type, table: dict[Any, list[str]]) -> None:
    """Apart from those that only pass on."""
    there = {found for found in vars(module).values() if isinstance(found, type) and issubclass(found, plain)}
    assert there - PASSING_ON == set(table)


@pytest.mark.parametrize(("suite", "wrapper", "rule"), PLAIN)
async def test_a_new_adapter_that_is_only_wrapped_keeps_the_rule(suite: type[Suite], wrapper: type, rule: str) -> None:
    """So it is the spoiled call that a rule fails on, and not the wrapping."""
    assert not await broken(bent(suite, wrapper), rule)


class UnsureDocuments(LateWriteDocuments):
    """Says of a lost write that it does not know; the write lands later, once more if it had arrived, as on any network."""

    says = OutcomeUnknown


ON_DOCUMENTS: dict[tuple[type[Suite], type[WrappedDocuments]], set[str]] = {
    (DedupSuite, WrappedDocuments): set(),
    (TokenSuite, WrappedDocuments): set(),
    (DedupSuite, UnsureDocuments): set(),
    (TokenSuite, UnsureDocuments): set(),
    (DedupSuite, StaleDocuments): {
        "an_added_key_is_seen_by_who_asked_before",
        "a_removed_key_is_forgotten_everywhere",
    },
    (TokenSuite, StaleDocuments): {
        "an_activated_token_is_live_everywhere",
        "a_removed_token_is_gone_everywhere",
    },
    (DedupSuite, LostAnswerDocuments): {
        "an_add_that_got_nowhere_is_no_success",
        "a_removal_that_got_nowhere_is_no_success",
    },
    (TokenSuite, LostAnswerDocuments): {
        "a_preparation_that_got_nowhere_is_no_success",
        "an_activation_that_got_nowhere_is_no_success",
        "a_removal_that_got_nowhere_is_no_success",
    },
    (DedupSuite, LateWriteDocuments): {
        "an_add_that_is_cut_off_is_never_said_to_have_failed",
        "a_removal_that_is_cut_off_is_never_said_to_have_failed",
    },
    (TokenSuite, LateWriteDocuments): {
        "a_preparation_that_is_cut_off_is_never_said_to_have_failed",
        "an_activation_that_is_cut_off_is_never_said_to_have_failed",
        "a_removal_that_is_cut_off_is_never_said_to_have_failed",
    },
    (TokenSuite, UpsertingDocuments): {
        "a_consumed_token_never_comes_back",
        "a_discarded_token_is_gone",
        "of_activating_and_removing_at_once_removing_wins",
    },
}
RETENTION_RULES = [
    "a_key_is_remembered_for_its_retention",
    "adding_again_counts_the_retention_anew",
    "a_key_that_is_renewed_keeps_its_fingerprint",
]


class OnSpoiledDocuments(Suite):
    """A suite on documents that are spoiled."""

    patience: ClassVar[float] = 0.2
    kind: type[WrappedDocuments] = WrappedDocuments

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[Any]:
        """Spoil documents in memory."""
        yield dedup_and_token_subjects(WrappedPlace(MemoryPlace(), self.kind), moves_clock=True).dedup

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[Any]:
        """Spoil documents in memory."""
        yield dedup_and_token_subjects(WrappedPlace(MemoryPlace(), self.kind), moves_clock=True).tokens


def spoiled(suite: type[Suite], kind: type[WrappedDocuments]) -> Suite:
    """Make a suite that runs on such documents."""
    return type("Spoiled", (OnSpoiledDocuments, suite), {"kind": kind})()


@pytest.mark.parametrize(("suite", "kind"), ON_DOCUMENTS, ids=lambda one: one.__name__)
async def test_documents_that_break_their_promises_are_found_out(suite: type[Suite], kind: type[WrappedDocuments]) -> None:
    """By these rules and no others: stale reads, lost answers taken for good ones, and lost writes said to have failed."""
    found = {rule for rule in rules(suite) if await broken(spoiled(suite, kind), rule)}
    assert found == {f"test_{rule}" for rule in ON_DOCUMENTS[suite, kind]}


@pytest.mark.parametrize("rule", RETENTION_RULES)
async def test_keys_are_remembered_where_documents_expire(rule: str) -> None:
    """A service that drops what has expired, to the millisecond, drops no mark that still counts."""
    assert not await broken(spoiled(DedupSuite, ExpiringDocuments), f"test_{rule}")


class FingerprintlessStores(WrappedStores):
    """Takes records without the fingerprints of their messages."""

    async def take(
        self, store: WholeStore, which: tuple[int, int], *, lease: int, after: Identity | None
    ) -> tuple[Record, ...]:
        """Leave them out."""
        return tuple(replace(record, fingerprint=b"") for record in await super().take(store, which, lease=lease, after=after))


@pytest.mark.parametrize(("kind", "fails"), [(FingerprintlessStores, True), (WrappedStores, False)])
async def test_a_record_that_is_taken_without_its_fingerprint_is_caught(
    kind: type[WrappedStores], *, fails: bool, tmp_path: Path
) -> None:
    """The store is in a SQLite file, because the ones in memory cannot be searched."""
    await make_tables(tmp_path / "store.db")

    class Searched(ForgetfulRecordsSuite):
        @asynccontextmanager
        async def open_store(self) -> AsyncIterator[WrappedStores]:
            async with ForgettingSubject.open(tmp_path / "store.db") as subject:
                await subject.empty()
                yield kind(subject)

    for rule in rules(ForgetfulRecordsSuite):
        assert bool(await broken(Searched(), rule)) is fails
