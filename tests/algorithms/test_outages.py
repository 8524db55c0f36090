"""What a batch reports when a system fails in the middle of it."""

from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.model.message import Message
from onceonly.model.record import Decision
from onceonly.model.remote import Response
from onceonly.ports.store import Resources
from onceonly_conformance.ring_subject import at
from tests.algorithms.test_ring_delivery import Counting, Place


async def test_an_outage_does_not_hide_the_error_that_came_before_it() -> None:
    """Both are reported, in their order: the connection was lost in a handler, and then the store was away."""
    place = Place()
    begin = place.store.begin

    class Losing(Counting):
        async def handle(
            self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
        ) -> Decision:
            """Lose the connection at one message. The store is away then."""
            if message.body == b"lost":
                place.store.begin = away  # type: ignore[method-assign]
                raise OutcomeUnknown("the connection was lost")
            return await super().handle(message, resources, attempt, response)

    async def away(*_: object, **__: object) -> None:
        raise CommitFailed("the store is away")

    place.ports = place.ports._replace(handlers=Losing(place.clock))
    now = place.clock.now()
    report = await place.deliver(at(now, "first"), at(now, "second", body=b"lost"), at(now, "third"))
    assert report.trouble == ("OutcomeUnknown: the connection was lost", "CommitFailed: the store is away")
    assert (report.unknown, report.handled) == (3, 0)
    place.store.begin = begin  # type: ignore[method-assign]
    place.ports = place.ports._replace(handlers=place.handlers)
    assert (await place.deliver()).handled == 3
