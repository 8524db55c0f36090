"""Every rule of every suite fails on a broken adapter, and every broken adapter is caught by a rule."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.destination_suite import DestinationSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.store_suite import StoreSuite
from onceonly_conformance.suite import Suite, broken, rules
from onceonly_conformance.transport_suite import TransportSuite
from tests.broken_adapters import (
    claims,
    commits,
    dead_letters,
    declaring,
    destinations,
    document_contents,
    document_writes,
    receiving,
    records,
    sending,
    wrapped_documents,
)
from tests.broken_adapters.dead_letters import WrappedLetters
from tests.broken_adapters.destinations import CarefulDestinations
from tests.broken_adapters.wrapped_documents import CarefulDocuments, OneByOneDocuments, WrappedDocuments, WrappedPlace
from tests.broken_adapters.wrapped_stores import WrappedStores
from tests.broken_adapters.wrapped_transports import WrappedTransports
from tests.conformance.memory_subjects import MemoryLetters, MemoryPlace, MemoryStores, MemoryTransports

STORES = {
    commits.AgreeableStore: ["a_resource_of_an_unknown_kind_is_a_lookup_error"],
    commits.BlindStore: ["a_fence_finds_a_record"],
    claims.BodyBlindStore: ["another_body_is_mismatched", "another_body_is_mismatched_with_an_pending_message_too"],
    claims.CaselessStore: ["ids_are_exact"],
    commits.ClaimlessStore: ["commit_makes_everything_visible_together", "a_handled_message_with_effects_is_pending"],
    commits.ClingingStore: [
        "an_abandoned_unit_holds_nobody_back",
        "an_abandoned_unit_cannot_commit",
        "a_claim_given_up_is_free_for_whoever_waits",
    ],
    claims.DenyingStore: ["a_message_never_seen_is_new"],
    commits.EagerStore: ["nothing_is_visible_before_commit", "a_handlers_own_error_passes_through"],
    claims.EarlyClaimStore: ["abandon_leaves_nothing"],
    commits.EffectsOnlyStore: ["a_handled_message_without_effects_is_done"],
    commits.ForgivingStore: ["a_refused_commit_leaves_nothing"],
    commits.FencelessStore: ["an_attempt_that_began_before_a_fence_is_not_committed_after_it"],
    commits.RecordsOnlyStore: [
        "a_fence_after_forget_finds_a_message_that_is_done",
        "a_fence_finds_a_handled_message_without_effects",
    ],
    commits.FickleStore: ["a_message_has_one_unit_key"],
    claims.FirstRequestStore: ["very_many_messages_share_a_unit"],
    commits.FirstReleaseStore: ["very_many_messages_can_be_left_out_of_a_commit"],
    claims.ForgetfulStore: ["two_units_never_both_handle_a_message", "a_handled_message_with_effects_is_pending"],
    commits.GreedyStore: ["a_message_left_out_of_commit_is_new_again"],
    commits.HoardingStore: ["a_handled_message_without_effects_leaves_no_record"],
    commits.IdleStore: ["a_unit_without_messages_commits_its_writes"],
    claims.JoiningStore: ["ids_that_join_to_the_same_text_are_distinct"],
    commits.MuteStore: ["a_synchronous_handler_writes_in_the_unit"],
    commits.OnceForgettingStore: ["forgetting_twice_is_fine"],
    claims.OnceOwingStore: ["looking_at_an_pending_message_changes_nothing"],
    claims.OverwritingStore: ["a_clash_leaves_the_first_message_as_it_was"],
    claims.ReissuingStore: ["owed_effects_are_identical_to_those_committed"],
    commits.RepeatableStore: ["a_unit_commits_once"],
    claims.SharingStore: ["endpoints_do_not_share_claims", "endpoints_do_not_share_records"],
    claims.ShorteningStore: ["ids_are_exact"],
    claims.SilentStore: ["a_batch_is_sorted_completely"],
    claims.SortingStore: ["new_messages_are_in_the_order_asked"],
    commits.StrictStore: ["abandoning_twice_is_harmless", "abandoning_after_commit_changes_nothing"],
    claims.StuckStore: ["a_cancelled_claim_holds_nobody_back"],
    commits.SwallowingStore: [
        "a_handlers_own_error_passes_through",
        "a_synchronous_handlers_own_error_passes_through",
    ],
    commits.SweepingStore: ["forgetting_leaves_other_records"],
    commits.TombstoneStore: ["forgetting_a_message_never_seen_claims_nothing"],
    commits.TwoStepStore: ["a_cancelled_commit_is_all_or_nothing"],
    claims.UnclaimingStore: ["a_forgotten_message_is_done"],
    commits.UnforgettingStore: ["a_forgotten_message_is_done"],
    claims.UnisolatedStore: ["a_failed_isolated_attempt_is_undone_alone"],
    commits.VagueStore: ["a_refused_commit_leaves_nothing"],
    commits.WalledStore: ["a_fence_leaves_a_message_new"],
    claims.UnsortedStore: ["overlapping_batches_do_not_deadlock"],
}

PENDING = {
    records.NewestFirstStore: ["undispatched_lists_the_oldest_first"],
    records.OverlappingStore: ["undispatched_lists_only_what_is_older"],
    records.UnlimitedStore: ["undispatched_lists_at_most_the_limit"],
    records.EffectlessStore: ["find_gives_records_in_the_order_asked"],
    records.FirstRequestFindStore: ["very_many_records_are_found"],
    records.FirstPageStore: ["take_goes_on_behind_a_record_that_may_be_gone"],
    records.ForeignFindStore: ["find_looks_at_its_own_endpoint_only"],
    records.GreedyStore: ["take_gives_each_record_once_within_the_lease"],
    records.HastyStore: ["take_gives_only_what_is_older"],
    records.HoardingStore: ["take_gives_each_record_once_within_the_lease"],
    records.InventiveStore: ["find_leaves_out_what_has_no_record"],
    records.LostCursorStore: ["take_goes_on_behind_a_record_that_may_be_gone"],
    records.LockingStore: ["what_is_taken_is_listed_found_and_forgotten_all_the_same"],
    records.SmallBacklogStore: ["take_goes_through_a_large_backlog"],
    records.UnlimitedTakingStore: ["take_gives_each_record_once_within_the_lease"],
    records.ForeignTakingStore: ["take_gives_only_the_endpoints_own"],
    records.UnorderedFindStore: ["find_gives_records_in_the_order_asked"],
}

TRANSPORTS = {
    declaring.NegativeTransport: ["the_traits_are_possible_and_the_same_for_every_endpoint"],
    declaring.UnequalTransport: ["the_traits_are_possible_and_the_same_for_every_endpoint"],
    declaring.DisorderedTransport: ["keys_keep_their_order_if_that_is_declared"],
    declaring.CompetingTransport: ["keys_keep_their_order_if_that_is_declared"],
    declaring.CuttingTransport: ["a_delay_beyond_the_longest_that_is_declared_is_kept"],
    declaring.PromisingTransport: ["delayed_events_go_to_the_subscribers_that_are_declared"],
    sending.AmnesicTransport: ["a_retry_copy_keeps_what_it_remembers"],
    receiving.AnonymousTransport: ["a_delivery_names_its_queue"],
    receiving.BlamingTransport: ["a_released_delivery_comes_again_at_once_and_is_no_suspect"],
    sending.BroadcastingTransport: ["a_command_goes_to_its_endpoint_only"],
    sending.CaselessTransport: ["an_event_is_matched_by_its_exact_type"],
    receiving.CountingTransport: ["a_first_copy_remembers_nothing"],
    sending.DeduplicatingTransport: ["the_same_id_sent_twice_arrives_twice"],
    receiving.DroppingTransport: ["a_cancelled_receive_loses_nothing"],
    receiving.HesitantTransport: ["a_receive_that_is_cancelled_at_any_moment_loses_nothing"],
    receiving.EchoingTransport: ["receivers_never_share_a_delivery", "a_held_delivery_is_not_given_to_another"],
    receiving.EndlessTransport: ["receive_is_empty_when_nothing_comes"],
    receiving.FillingTransport: ["receive_does_not_wait_to_fill"],
    sending.FaithfulTransport: ["what_an_endpoint_names_as_gone_is_unsubscribed"],
    sending.FirstDeclarationTransport: ["declaring_adds_subscriptions"],
    sending.FirstDestinationTransport: ["one_call_sends_to_several_endpoints_and_of_several_types"],
    receiving.FirstRequestTransport: ["very_many_messages_are_sent_received_and_settled_at_once"],
    receiving.FirstReleaseTransport: ["very_many_deliveries_are_released_at_once"],
    sending.FirstSubscriberTransport: ["an_event_goes_to_every_endpoint_that_subscribed"],
    sending.FussyTransport: ["sending_nothing_answers_nothing"],
    receiving.GrudgingTransport: ["releasing_a_suspect_clears_it"],
    sending.ExpiringTransport: ["an_expired_message_arrives"],
    sending.AttributeAddingTransport: ["a_message_of_another_format_arrives_as_it_was_written"],
    sending.DelayedAttributeAddingTransport: ["a_delayed_message_of_another_format_arrives_as_it_was_written"],
    sending.DelayedHeaderLosingTransport: ["a_delayed_message_arrives_as_it_was_sent"],
    sending.HeaderLosingTransport: ["a_message_arrives_as_it_was_sent"],
    sending.HeaderMergingTransport: ["a_header_that_is_repeated_arrives_as_often"],
    sending.HeaderShorteningTransport: ["the_greatest_headers_arrive"],
    sending.KeyConsumingTransport: ["a_partition_key_arrives"],
    sending.ReleasedHeaderLosingTransport: ["a_released_message_arrives_as_it_was_sent"],
    sending.ImpatientTransport: ["a_delayed_message_is_not_delivered_before_it_is_due"],
    receiving.LateAckTransport: [
        "a_late_ack_does_not_take_the_delivery_of_another",
        "a_process_that_holds_a_delivery_again_cannot_settle_the_former_one",
    ],
    receiving.LateReleaseTransport: [
        "a_late_release_does_not_take_the_delivery_of_another",
        "a_process_that_holds_a_delivery_again_cannot_settle_the_former_one",
    ],
    receiving.PrefetchingTransport: ["a_receiver_keeps_only_what_it_returned"],
    receiving.NarrowTransport: ["a_receiver_that_holds_many_receives_more"],
    receiving.SingleCallTransport: ["calls_of_one_transport_may_overlap"],
    receiving.OnceConnectedTransport: ["a_transport_works_on_when_its_leases_have_ended"],
    receiving.DeafTransport: ["a_receive_that_waits_while_leases_end_goes_on"],
    receiving.LimitedTransport: ["a_message_that_was_held_very_often_arrives"],
    sending.TypeCuttingTransport: ["long_types_and_types_in_any_script_are_told_apart"],
    sending.PromptEventTransport: ["a_delayed_event_goes_to_every_endpoint_that_subscribed"],
    sending.PostponingTransport: ["a_delayed_message_that_was_looked_for_too_early_is_not_late"],
    sending.BusyDepthTransport: ["depth_counts_nothing_for_a_receiver_that_waits"],
    sending.LateTransport: ["a_delayed_message_is_delivered_when_it_is_due"],
    receiving.LeaseOnlyTransport: ["a_released_delivery_comes_again_at_once_and_is_no_suspect"],
    sending.MirroringTransport: ["a_message_due_in_the_past_is_delivered_at_once"],
    receiving.MultiReleaseTransport: ["a_release_gives_back_only_what_it_names"],
    receiving.FirstCallTransport: ["deliveries_of_several_calls_are_settled_at_once"],
    receiving.MultiAckTransport: ["an_ack_settles_only_what_it_names"],
    receiving.NullTransport: ["an_empty_body_arrives_empty"],
    receiving.OverfullTransport: ["receive_takes_at_most_the_limit"],
    sending.PessimisticDepthTransport: ["depth_counts_what_came_back_as_waiting"],
    sending.PickyTransport: ["an_event_nobody_subscribed_to_is_taken"],
    sending.QueueingTransport: ["a_delayed_message_does_not_hold_up_others"],
    sending.RecreatingTransport: ["declaring_again_is_harmless"],
    sending.ReversingTransport: ["answers_are_in_the_order_of_the_sends"],
    sending.ReplacingTransport: ["declaring_less_keeps_subscriptions"],
    receiving.OwnClockTransport: ["a_receiver_whose_clock_is_ahead_hides_nothing"],
    receiving.RevivingTransport: ["extending_too_late_does_nothing"],
    sending.RoughDepthTransport: ["depth_counts_what_waits_is_held_and_is_delayed"],
    receiving.SharedQueueTransport: ["a_message_for_one_endpoint_is_not_given_to_another"],
    receiving.SleepyTransport: ["a_waiting_receive_wakes_when_a_message_comes"],
    receiving.StrictTransport: ["a_late_ack_is_harmless", "acking_twice_is_harmless"],
    receiving.SuspiciousTransport: ["a_first_delivery_is_no_suspect"],
    sending.SwallowingTransport: ["a_command_that_cannot_be_routed_is_refused"],
    receiving.TolerantTransport: ["receiving_from_an_unknown_queue_is_a_setup_error"],
    receiving.TextTransport: ["a_message_arrives_as_it_was_sent"],
    sending.TightTransport: ["a_body_of_the_greatest_size_arrives"],
    sending.TruncatingTransport: ["a_body_over_the_greatest_size_is_refused"],
    receiving.TrustingTransport: ["a_delivery_whose_lease_ended_comes_again_as_a_suspect"],
    receiving.UnextendingTransport: ["extending_keeps_a_delivery"],
    receiving.MultiExtendTransport: ["extending_keeps_a_delivery"],
    receiving.UnsettlingTransport: ["a_message_arrives_once_when_it_is_acked"],
    sending.SharedDelayTransport: [
        "depth_counts_what_waits_is_held_and_is_delayed",
        "depth_counts_delayed_events_of_the_endpoint_alone",
    ],
    sending.CommandDelayTransport: ["depth_counts_delayed_events_of_the_endpoint_alone"],
    sending.ZeroDepthTransport: ["the_depth_of_an_unknown_queue_is_a_setup_error"],
}

LETTERS = {
    dead_letters.BoastingLetters: ["removing_says_how_many_there_were"],
    dead_letters.BodyBlindLetters: ["another_body_is_another_letter"],
    dead_letters.ChosenOnceLetters: ["pages_of_chosen_letters_follow_one_another"],
    dead_letters.DuplicatingLetters: ["adding_twice_keeps_one"],
    dead_letters.EndpointBlindLetters: ["letters_of_two_endpoints_are_two"],
    dead_letters.EndpointIgnoringLetters: ["letters_are_chosen_by_endpoint"],
    dead_letters.FirstChoiceLetters: ["choices_combine"],
    dead_letters.FirstPageLetters: ["pages_follow_one_another", "nothing_follows_the_last_letter"],
    dead_letters.FirstRequestLetters: ["very_many_keys_are_removed_at_once"],
    dead_letters.RestampingLetters: ["a_letter_that_was_stored_elsewhere_keeps_its_time"],
    dead_letters.HeaderBlindLetters: ["letters_without_identity_are_told_apart_by_what_came"],
    dead_letters.HistoryLosingLetters: ["a_letter_comes_back_with_every_field"],
    dead_letters.HoardingLetters: ["a_removed_letter_is_gone_and_the_others_stay"],
    dead_letters.KeyOrderLetters: ["letters_are_listed_in_the_order_they_were_added"],
    dead_letters.LastReasonLetters: ["the_first_reason_is_kept"],
    dead_letters.GroupIgnoringLetters: ["letters_are_chosen_by_failure_group"],
    dead_letters.MessagesOnlyLetters: ["a_letter_without_identity_comes_back_with_every_field"],
    dead_letters.ReasonIgnoringLetters: ["letters_are_chosen_by_a_part_of_the_reason"],
    dead_letters.RerunningLetters: ["a_finish_only_letter_says_so"],
    dead_letters.ResentfulLetters: ["a_removed_letter_may_be_added_again"],
    dead_letters.ReversedLetters: ["letters_are_listed_in_the_order_they_were_added"],
    dead_letters.RoughCountLetters: ["letters_are_chosen_by_endpoint"],
    dead_letters.StrictLetters: ["an_unknown_key_gives_nothing"],
    dead_letters.TypeIgnoringLetters: ["letters_are_chosen_by_message_type"],
    dead_letters.UndatedLetters: ["a_letter_comes_back_with_every_field"],
    dead_letters.UnlimitedLetters: ["a_page_holds_at_most_the_limit"],
    dead_letters.WildcardLetters: ["a_part_of_the_reason_has_no_wildcards"],
    dead_letters.WipingLetters: ["removing_nothing_removes_nothing"],
}

DOCUMENTS = {
    wrapped_documents.LateWriteDocuments: ["a_write_cut_before_it_arrived_changes_nothing"],
    wrapped_documents.LostAnswerDocuments: [
        "a_cut_insert_is_unknown",
        "a_cut_replace_is_unknown",
        "a_cut_delete_is_unknown",
        "many_that_are_cut_are_unknown",
        "a_write_cut_before_it_arrived_changes_nothing",
    ],
    wrapped_documents.StaleDocuments: ["a_load_sees_every_finished_write"],
    document_writes.AllOrNothingDocuments: ["many_are_answered_one_by_one", "very_many_are_held_at_once"],
    document_writes.CertainDocuments: [
        "a_cut_insert_is_unknown",
        "a_cut_replace_is_unknown",
        "a_cut_delete_is_unknown",
        "many_that_are_cut_are_unknown",
    ],
    document_writes.CheckThenDeleteDocuments: ["a_delete_and_a_replace_that_race_have_one_winner"],
    document_writes.CheckThenInsertDocuments: ["inserts_that_race_have_one_winner"],
    document_writes.CheckThenReplaceDocuments: [
        "replaces_that_race_have_one_winner",
        "no_update_is_lost",
        "each_version_is_followed_by_one",
    ],
    document_writes.ContentDocuments: ["a_delete_of_a_deleted_document_is_refused"],
    document_writes.EmptyDocuments: ["a_missing_document_is_left_out"],
    document_writes.EmptyingDocuments: ["a_document_is_deleted_at_its_version"],
    document_writes.FirstBatchDocuments: ["very_many_are_held_at_once"],
    document_writes.FirstErrorDocuments: ["many_of_which_one_never_arrived_are_failed_only_if_none_was_written"],
    document_writes.FirstPacketDocuments: ["large_documents_are_held_at_once"],
    document_writes.ForgivingDocuments: ["an_insert_over_a_document_is_refused"],
    document_writes.FussyDocuments: ["nothing_is_saved_and_nothing_loaded"],
    document_writes.HashingDocuments: [
        "an_equal_body_gets_another_version",
        "a_version_never_comes_again",
        "a_version_from_before_a_delete_is_refused",
    ],
    document_writes.InventiveDocuments: ["a_new_document_is_inserted"],
    document_writes.LockingDocuments: ["overlapping_writes_do_not_deadlock"],
    document_writes.OverwritingDocuments: ["an_insert_over_a_document_is_refused"],
    document_writes.RecountingDocuments: ["a_version_never_comes_again", "a_version_from_before_a_delete_is_refused"],
    document_writes.ResignedDocuments: [
        "a_cut_insert_is_unknown",
        "a_cut_replace_is_unknown",
        "a_cut_delete_is_unknown",
        "many_that_are_cut_are_unknown",
        "a_write_cut_before_it_arrived_changes_nothing",
    ],
    document_writes.RetryingDocuments: [
        "a_cut_insert_is_unknown",
        "a_cut_replace_is_unknown",
        "a_cut_delete_is_unknown",
        "many_that_are_cut_are_unknown",
    ],
    document_writes.SameVersionDocuments: ["a_document_is_replaced_at_its_version"],
    document_writes.ShuffledDocuments: ["many_are_answered_one_by_one"],
    document_writes.StoppingDocuments: ["many_are_answered_one_by_one"],
    document_writes.TouchingDocuments: ["a_read_changes_no_version"],
    document_writes.UnchangedDocuments: ["an_equal_body_gets_another_version"],
    document_writes.UnconditionalDeleteDocuments: [
        "a_delete_at_an_old_version_is_refused",
        "a_delete_of_what_must_not_exist_changes_nothing",
    ],
    document_writes.UnconditionalDocuments: ["a_replace_at_an_old_version_is_refused"],
    document_writes.UpsertingDocuments: ["a_replace_of_a_deleted_document_is_refused"],
    document_contents.CaselessDocuments: ["keys_are_exact"],
    document_contents.CaselessListDocuments: ["keys_are_listed_by_prefix"],
    document_contents.CursorDocuments: ["a_deleted_document_is_not_listed"],
    document_contents.CuttingDocuments: ["a_longer_key_is_refused"],
    document_contents.FirstPageDocuments: ["keys_are_listed_page_by_page"],
    document_contents.FolderDocuments: ["keys_are_listed_by_prefix"],
    document_contents.HastyDocuments: ["a_document_without_expiry_stays"],
    document_contents.LateLimitDocuments: ["a_larger_body_is_refused", "a_longer_key_is_refused"],
    document_contents.LavishDocuments: ["a_larger_body_is_refused"],
    document_contents.MergingDocuments: ["a_body_of_another_kind_replaces_one"],
    document_contents.NarrowDocuments: ["a_json_body_comes_back"],
    document_contents.NormalizingDocuments: ["keys_are_exact"],
    document_contents.OnceExpiringDocuments: ["a_document_without_expiry_stays"],
    document_contents.PageOrderDocuments: ["keys_are_listed_page_by_page"],
    document_contents.PathDocuments: ["keys_are_exact", "the_longest_key_is_held"],
    document_contents.ProbingDocuments: ["a_good_place_is_passed"],
    document_contents.PunctualDocuments: ["an_expiry_in_the_past_is_no_error"],
    document_contents.RoundingDocuments: ["a_json_body_comes_back"],
    document_contents.ShorteningDocuments: ["the_longest_key_is_held"],
    document_contents.SilentWarningDocuments: ["a_good_place_is_passed"],
    document_contents.SkippingDocuments: ["keys_are_listed_page_by_page"],
    document_contents.StrictLoadDocuments: ["a_key_named_twice_is_loaded_once"],
    document_contents.StrippingDocuments: ["any_bytes_come_back"],
    document_contents.TextDocuments: ["any_bytes_come_back", "a_body_of_another_kind_replaces_one"],
    document_contents.TombstoneDocuments: ["a_deleted_document_is_not_listed"],
    document_contents.TruncatingDocuments: ["the_largest_body_is_held"],
    document_contents.TrustingDocuments: ["a_missing_place_is_a_setup_error"],
    document_contents.UnescapingDocuments: ["keys_are_exact"],
    document_contents.UnlimitedDocuments: ["keys_are_listed_page_by_page"],
    document_contents.VagueLimitDocuments: ["a_larger_body_is_refused", "a_longer_key_is_refused"],
    document_contents.WholeDocuments: ["a_json_body_comes_back"],
    document_contents.WildcardDocuments: ["keys_are_listed_by_prefix"],
}

DESTINATIONS = {
    destinations.UndeclaredDestinations: ["the_kinds_and_names_that_are_declared_are_those_that_there_are"],
    destinations.PrefixingDestinations: ["a_message_arrives_exactly_as_it_was_sent"],
    destinations.HeaderLosingDestinations: ["a_message_arrives_exactly_as_it_was_sent"],
    destinations.RenamingDestinations: ["a_message_that_is_sent_twice_arrives_twice_with_one_id"],
    destinations.DeduplicatingDestinations: ["a_message_that_is_sent_twice_arrives_twice_with_one_id"],
    destinations.CreatingDestinations: ["a_missing_destination_is_refused_and_not_created"],
    destinations.SwallowingDestinations: [
        "a_missing_destination_is_refused_and_not_created",
        "a_destination_that_was_deleted_is_refused",
    ],
    destinations.SharedChannelDestinations: ["a_missing_destination_does_not_affect_other_messages"],
    destinations.RememberingDestinations: ["a_destination_that_was_deleted_is_refused"],
    destinations.TolerantDestinations: ["another_kind_is_refused"],
    destinations.PromptDestinations: ["a_delay_is_kept_or_refused"],
    destinations.LiteralDestinations: ["a_message_due_in_the_past_arrives_at_once"],
    destinations.GreedyDestinations: ["a_body_over_the_greatest_size_is_refused"],
}

TABLES: tuple[tuple[type[Suite], tuple[Any, ...], type, dict[Any, list[str]]], ...] = (
    (StoreSuite, (claims, commits), WrappedStores, STORES),
    (PendingRecordsSuite, (records,), WrappedStores, PENDING),
    (TransportSuite, (declaring, receiving, sending), WrappedTransports, TRANSPORTS),
    (DestinationSuite, (destinations,), CarefulDestinations, DESTINATIONS),
    (DeadLetterSuite, (dead_letters,), WrappedLetters, LETTERS),
    (DocumentsSuite, (document_contents, document_writes, wrapped_documents), WrappedDocuments, DOCUMENTS),
)
PASSING = {
    WrappedStores,
    WrappedTransports,
    CarefulDestinations,
    WrappedLetters,
    WrappedDocuments,
    OneByOneDocuments,
    CarefulDocuments,
    claims.RenamingStores,
    dead_letters.ChoosingLetters,
    document_contents.BodyChangingDocuments,
    document_contents.ExpiringDocuments,
    document_contents.KeyChangingDocuments,
}
"""What only passes on, or does what is allowed."""

BITES = [
    pytest.param(suite, adapter, f"test_{rule}", id=f"{adapter.__name__}-{rule}")
    for suite, _, _, table in TABLES
    for adapter, broken_rules in table.items()
    for rule in broken_rules
]


class Bent(Suite):
    """A suite whose adapter is wrapped. What has to wait without end does not wait long."""

    patience: ClassVar[float] = 0.2
    wrapper: Any = staticmethod(lambda subject: subject)

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[Any]:
        """Wrap a store that blocks."""
        yield self.wrapper(MemoryStores(blocking=True))

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[Any]:
        """Wrap the memory transport."""
        yield self.wrapper(MemoryTransports())

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[Any]:
        """Wrap the memory transport, and add another program."""
        yield self.wrapper(MemoryTransports())

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[Any]:
        """Wrap the dead letters in memory."""
        yield self.wrapper(MemoryLetters())

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[Any]:
        """Wrap each client of a place in memory."""
        yield WrappedPlace(MemoryPlace(), self.wrapper)


def bent(suite: type[Suite], wrapper: Any) -> Suite:
    """Make a suite that runs on this adapter, wrapped."""
    return type("Bent", (Bent, suite), {"wrapper": staticmethod(wrapper)})()


@pytest.mark.parametrize(("suite", "adapter", "rule"), BITES)
async def test_the_rule_fails_on_the_broken_adapter(suite: type[Suite], adapter: type, rule: str) -> None:
    """And what it fails on is the promise, not a mistake in the adapter's code."""
    assert await broken(bent(suite, adapter), rule)


@pytest.mark.parametrize(("suite", "table"), [(suite, table) for suite, _, _, table in TABLES])
async def test_every_rule_bites_somewhere(suite: type[Suite], table: dict[Any, list[str]]) -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for broken_rules in table.values() for rule in broken_rules} == set(rules(suite))


@pytest.mark.parametrize(("modules", "plain", "table"), [rest for _, *rest in TABLES])
async def test_every_broken_adapter_is_in_the_table(modules: tuple[Any, ...], plain: type, table: dict[Any, list[str]]) -> None:
    """Apart from those that only pass on."""
    named = [found for module in modules for found in vars(module).values()]
    there = {found for found in named if isinstance(found, type) and issubclass(found, plain)}
    assert there - PASSING == set(table)


PLAIN = [
    pytest.param(suite, wrapper, rule, id=f"{wrapper.__name__}-{rule}")
    for suite, wrapper in (
        (StoreSuite, WrappedStores),
        (StoreSuite, claims.RenamingStores),
        (PendingRecordsSuite, WrappedStores),
        (PendingRecordsSuite, claims.RenamingStores),
        (TransportSuite, WrappedTransports),
        (DestinationSuite, CarefulDestinations),
        (DeadLetterSuite, WrappedLetters),
        (DocumentsSuite, WrappedDocuments),
        (DocumentsSuite, OneByOneDocuments),
        (DocumentsSuite, CarefulDocuments),
        (DocumentsSuite, document_contents.BodyChangingDocuments),
        (DocumentsSuite, document_contents.ExpiringDocuments),
        (DocumentsSuite, document_contents.KeyChangingDocuments),
    )
    for rule in rules(suite)
]


@pytest.mark.parametrize(("suite", "wrapper", "rule"), PLAIN)
async def test_an_adapter_that_is_only_wrapped_keeps_the_rule(suite: type[Suite], wrapper: type, rule: str) -> None:
    """So it is the spoiled call that a rule fails on, and not the wrapping."""
    assert not await broken(bent(suite, wrapper), rule)


def test_a_waiver_needs_a_rule_and_a_reason() -> None:
    """Otherwise it would hide more than it says."""
    for waived in ({"test_no_such_rule": "because"}, {rules(StoreSuite)[0]: " "}):
        with pytest.raises(TypeError):
            type("Waiving", (StoreSuite,), {"waived": waived})


class TestWaived(Bent, DeadLetterSuite):
    """A suite with a waiver shows its reason."""

    waived: ClassVar[dict[str, str]] = {"test_choices_combine": "this shows that a waiver is printed"}
