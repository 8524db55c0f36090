"""A build of Python without the global interpreter lock is not tested, and `onceonly run` says so."""

import logging
import sys

import pytest

from onceonly.cli.run import _warn_without_lock, run
from onceonly.model.errors import SetupError
from onceonly.runtime.observe import logs

EVENT = "not tested without the global interpreter lock"


@pytest.mark.parametrize(("has_lock", "events"), [(True, []), (False, [EVENT])])
def test_a_missing_lock_is_a_warning(
    has_lock: bool,  # noqa: FBT001 - a case
    events: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python 3.13 and later tell it."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_lock, raising=False)
    with caplog.at_level(logging.WARNING, "onceonly"):
        _warn_without_lock()
    assert [record.event for record in caplog.records] == events  # type: ignore[attr-defined]


def test_before_python_3_13_there_is_a_lock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Such a version has no function to ask."""
    monkeypatch.delattr(sys, "_is_gil_enabled", raising=False)
    _warn_without_lock()
    assert not caplog.records


def test_the_command_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Before it looks for the endpoints."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.setattr(logs, "log_to_stderr", lambda **_: None)
    with pytest.raises(SetupError, match="nowhere"):
        run(["nowhere:shop"], drain=True)
    assert [record.event for record in caplog.records] == [EVENT]  # type: ignore[attr-defined]
