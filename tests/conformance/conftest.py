"""CommitFailed rules show what they compared."""

import pytest

pytest.register_assert_rewrite(
    "onceonly.conformance.suite",
    "onceonly.conformance.store_suite",
    "onceonly.conformance.store_subject",
    "onceonly.conformance.transport_suite",
    "onceonly.conformance.broker_suite",
    "onceonly.conformance.fault_suite",
    "onceonly.conformance.ring_suite",
    "onceonly.conformance.register_suite",
    "onceonly.conformance.pending_suite",
    "onceonly.conformance.dead_letter_suite",
    "onceonly.conformance.cutting",
    "onceonly.conformance.dedup_suite",
    "onceonly.conformance.token_suite",
    "onceonly.conformance.transaction_suite",
    "onceonly.conformance.artifact_suite",
    "onceonly.conformance.documents_suite",
    "onceonly.conformance.forgetful_suite",
    "onceonly.conformance.entity_suite",
    "onceonly.conformance.sql_guard_suite",
    "onceonly.conformance.sql_lock_suite",
    "onceonly.conformance.documents_subject",
)
