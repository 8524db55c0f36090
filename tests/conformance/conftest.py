"""CommitFailed rules show what they compared."""

import pytest

pytest.register_assert_rewrite(
    "onceonly.testing.suite",
    "onceonly.testing.store_suite",
    "onceonly.testing.store_subject",
    "onceonly.testing.transport_suite",
    "onceonly.testing.dead_letter_suite",
    "onceonly.testing.cutting",
    "onceonly.testing.dedup_suite",
    "onceonly.testing.token_suite",
    "onceonly.testing.transaction_suite",
    "onceonly.testing.artifact_suite",
    "onceonly.testing.documents_suite",
    "onceonly.testing.forgetful_suite",
    "onceonly.testing.documents_subject",
)
