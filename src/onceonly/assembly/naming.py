"""Errors of places, by the name of the endpoint and of the setting that names the place."""

from collections.abc import Iterator
from contextlib import contextmanager

from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.model.errors import RetryableError, SetupError


@contextmanager
def named(settings: Settings, role: str, place: Location) -> Iterator[None]:
    """Say of a place that cannot be used whose it is, and which; the error stays of its kind."""
    try:
        yield
    except (SetupError, RetryableError) as error:
        raise type(error)(f"endpoint {settings.name!r} cannot use its {role} {place}: {error}") from error
