"""A handler that asks for a unit of its own gets one in the same batch, and nothing is counted."""

from onceonly.algorithms.delivery import deliver
from onceonly.model.errors import HandlerFailed
from onceonly.model.message import Failure, FailureKind, Message, Send
from onceonly.model.record import Decision
from onceonly.model.remote import Response
from onceonly.ports.store import Resources
from onceonly.ports.transport import Topology
from onceonly_conformance.ring_subject import at, name_of
from tests.algorithms.test_ring_delivery import Counting, Place


class Asking(Counting):
    """Handlers one of which asks for a unit of its own when it first runs, as those of SQL stores do."""

    has_asked = False

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Ask once."""
        if name_of(message.identity) == "asks" and not self.has_asked:
            self.has_asked = True
            raise HandlerFailed(Failure(kind=FailureKind.ALONE, reason="it changes the session"))
        return await super().handle(message, resources, attempt, response)


async def test_a_handler_that_asks_for_a_unit_of_its_own_runs_behind_the_others_uncounted() -> None:
    """In an isolated batch, in which the others are not run again."""
    place = Place()
    place.handlers = Asking(place.clock)
    place.ports = place.ports._replace(handlers=place.handlers)
    now = place.clock.now()
    await place.transport.declare([Topology(endpoint="shop")])
    await place.transport.send([Send(message=at(now, name), to="shop") for name in ("asks", "first", "second")])
    report = await deliver(await place.transport.receive(10, 0), place.ports, isolated=True)
    assert (report.handled, report.failed, report.retried, report.dead) == (3, 0, 0, 0)
    assert place.handlers.handled[-1] == "asks"
    assert await place.reasons() == []
