"""`captured`, which shows tests what an endpoint has sent and published."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import select

from onceonly.integrations.django.borrowed import borrowed_anyway
from onceonly.integrations.django.endpoint import CAPTURES, DjangoEndpoint, place_of_endpoint
from onceonly.integrations.django.search_path import place_within
from onceonly.integrations.django.transactions import keys_of
from onceonly.model.identity import Identity, claim_key
from onceonly.sql.store.tables import tables


class CapturedMessage(NamedTuple):
    """A message as it was given to `send` or `publish`. `to` is None for an event."""

    body: Any
    to: Any
    options: Mapping[str, Any]


class CapturedMessages:
    """What an endpoint has sent and published within the block of `captured`."""

    def __init__(self, endpoint: DjangoEndpoint, noted: "list[tuple[bytes, CapturedMessage]]") -> None:
        self._endpoint = endpoint
        self._noted = noted

    @property
    def messages(self) -> list[CapturedMessage]:
        """Those that are committed, or will be with the transaction that is open now, in order.

        What was rolled back, with a transaction or a savepoint, is not there. Reads the database.
        """
        there = self._stored([key for key, _ in self._noted])
        return [message for key, message in self._noted if key in there]

    @property
    def bodies(self) -> list[Any]:
        """The bodies of `messages`, as they were given."""
        return [message.body for message in self.messages]

    def _stored(self, keys: list[bytes]) -> set[bytes]:
        if not keys:
            return set()
        place = place_within(self._endpoint.database, place_of_endpoint(self._endpoint))
        column = tables(place.prefix, place.schema).records.c.key
        with borrowed_anyway(self._endpoint.database) as connection:
            stored = set(connection.scalars(select(column).where(column.in_(keys))))
        own = (each.key for each in keys_of(self._endpoint.database) if each.endpoint is self._endpoint)
        return stored | {claim_key(self._endpoint.name, each.record.identity) for key in own for each in key.held()}


@contextmanager
def captured(endpoint: DjangoEndpoint) -> Iterator[CapturedMessages]:
    """Show what an endpoint sends and publishes in a block.

    Write `with captured(shop) as published:`, then look at `published.bodies` or `published.messages`.
    It works in a `TestCase`, which never commits, and in a `TransactionTestCase`. Django's test environment sends nothing.
    """
    noted: list[tuple[bytes, CapturedMessage]] = []

    def note(record: Identity, body: object, to: object, options: Mapping[str, Any]) -> None:
        noted.append((claim_key(endpoint.name, record), CapturedMessage(body, to or None, dict(options))))

    found = CapturedMessages(endpoint, noted)
    captures = CAPTURES.setdefault(endpoint, [])
    captures.append(note)
    try:
        yield found
    finally:
        captures.remove(note)
