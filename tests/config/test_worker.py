"""Worker settings: everything that is wrong is said at once."""

import pytest

from onceonly.config.worker import WorkerSettings
from onceonly.model.errors import SetupError


def test_the_defaults_are_fine() -> None:
    """Nobody has to set anything."""
    assert WorkerSettings().problems() == ()


def test_all_problems_are_reported_together() -> None:
    """One error, five reasons."""
    with pytest.raises(SetupError) as raised:
        WorkerSettings(batch_size=0, concurrency=0, budget=0, grace=-1, wait=0)
    text = str(raised.value)
    assert all(name in text for name in ("batch_size", "concurrency", "budget", "grace", "wait"))
