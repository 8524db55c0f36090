"""Public errors have public names, and they can be pickled."""

import copy
import pickle
import traceback

import pytest

from onceonly import RetryLater, errors

PUBLIC = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_traceback_shows_the_public_name(kind: type[Exception]) -> None:
    """Not that of the module where the class is defined."""
    made = kind(1.0) if kind is RetryLater else kind("no stock")
    (line,) = traceback.format_exception_only(made)
    assert line.startswith(f"onceonly.errors.{kind.__name__}: ")


@pytest.mark.parametrize("kind", PUBLIC)
def test_an_error_is_pickled_and_copied_whole(kind: type[Exception]) -> None:
    """As process pools and test runners do."""
    made = kind(2.5, "wait for stock") if kind is RetryLater else kind("no stock")
    for other in (pickle.loads(pickle.dumps(made)), copy.copy(made)):  # noqa: S301 - its own
        assert (type(other), str(other), vars(other)) == (kind, str(made), vars(made))
