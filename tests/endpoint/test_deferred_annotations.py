"""Annotations that Python evaluates when they are asked for, as it does since 3.14, with names that only type checkers know."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from sqlalchemy.orm import Session

from onceonly import Endpoint
from onceonly.endpoint.signatures import Function
from onceonly.formats.annotations import annotations_of, signature_of
from onceonly.integrations.celery_tasks import injected_parameters
from onceonly.model.errors import SetupError

TEXT = "def place(order: {order}, session: Session) -> None: ..."
"""Up to Python 3.13, such a name is written as a text. Since 3.14, it may stand as it is."""
STYLES = ['"Order"'] if sys.version_info < (3, 14) else ['"Order"', "Order"]


@pytest.fixture(params=STYLES)
def place(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Define a function whose first annotation has an unknown name."""
    names: dict[str, Any] = {"Session": Session, "__name__": __name__}
    exec(TEXT.format(order=request.param), names)  # noqa: S102 - a function of the language, not of this version's grammar
    found: Callable[..., None] = names["place"]
    return found


def test_signatures_have_the_names(place: Callable[..., None]) -> None:
    """And the annotations that are known."""
    assert list(signature_of(place).parameters) == ["order", "session"]
    assert annotations_of(place)["session"] is Session
    assert list(annotations_of(place)) == ["order", "session", "return"]


def test_a_handler_with_an_unknown_name_is_refused(place: Callable[..., None]) -> None:
    """With the name, like any other fault of a signature."""
    assert Function(place, None).signature().problems == ("an annotation cannot be resolved: name 'Order' is not defined",)
    endpoint = Endpoint("shop", store="sqlite://")
    endpoint.handler(place)
    with pytest.raises(SetupError, match="an annotation cannot be resolved: name 'Order' is not defined"):
        endpoint.topology()


def test_a_task_of_celery_needs_only_the_session(place: Callable[..., None]) -> None:
    """Its other annotations may have unknown names, also behind a decorator."""

    @wraps(place)
    def decorated(*args: Any) -> None:
        place(*args)

    assert injected_parameters(place) == {"session": Session}
    assert injected_parameters(decorated) == {"session": Session}
