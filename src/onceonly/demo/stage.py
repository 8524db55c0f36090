"""Everything around the workers of a run: fills the queue, plays the dumb sink, and collects what is left."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from sqlalchemy import Table, select

from onceonly.demo.audit import Line, Remains, Sunk
from onceonly.demo.endpoints import Books, Place, make
from onceonly.demo.flights import LEDGER, LOYALTY, MILES_FLOWN, SINK
from onceonly.drivers.schema import create, create_user_tables, drop
from onceonly.drivers.sql import Database
from onceonly.model.errors import TryAgain
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly.serialization.cloudevents import take_apart
from onceonly.wiring import open_database, open_transport, schemas, temporary_transport

CHUNK = 500
LOOKS = 4  # each replaces what one pool still has of a server that was restarted
EVERYTHING = 10**9
FOR_EVER = 10**15  # an instant, in milliseconds since 1970, that no record was stored after


class Stage:
    """One run's queues and tables, seen from the parent process, which nobody kills."""

    def __init__(self, place: Place, ports: Mapping[str, Ports], sink: Transport, database: Database) -> None:
        """Stand on what `staged` opened."""
        self._place = place
        self._ports = ports
        self._sink = sink
        self._database = database
        self.sunk: list[Sunk] = []

    async def fill(self, sends: Sequence[Send]) -> None:
        """Send the messages to `ledger`. Raises RuntimeError when the queue refuses one."""
        for start in range(0, len(sends), CHUNK):
            answers = await self._sink.send(sends[start : start + CHUNK])
            if set(answers) != {Answer.TAKEN}:
                raise RuntimeError("the queue did not take every message")

    async def drain_sink(self) -> None:
        """Take what came on the wire and remember all of it: the sink is no endpoint and knows no duplicates."""
        while deliveries := await self._sink.receive(CHUNK, 0):
            self.sunk += [_sunk(delivery) for delivery in deliveries]
            await self._sink.ack(deliveries)

    async def depths(self) -> dict[str, Depth]:
        """Count what is left in each queue."""
        return {name: await self._sink.depth(name) for name in (LEDGER, LOYALTY, SINK)}

    async def remains(self) -> Remains:
        """Collect everything that the run left; connections that a server ended while nobody used them show only now."""
        for _ in range(LOOKS - 1):
            with suppress(TryAgain):
                return await self._remains()
        return await self._remains()

    async def _remains(self) -> Remains:
        books = Books(self._place.prefix, self._place.store)
        async with self._database.reading() as connection:
            rows = await connection.execute(select(books.journal).order_by(books.journal.c.line))
            journal = [Line(row.endpoint, row.source, row.id, row.mark) for row in rows]
            miles = {
                name: {row.carrier: row.miles for row in await connection.execute(select(table.c.carrier, table.c.miles))}
                for name, table in _miles(books).items()
            }
        return Remains(
            journal=journal,
            sunk=self.sunk,
            dead=await self._dead(),
            miles=miles,
            records=sum([len(await ports.store.undispatched(FOR_EVER, EVERYTHING)) for ports in self._ports.values()]),
            queued=sum(depth.waiting + depth.held + depth.delayed for depth in (await self.depths()).values()),
        )

    async def _dead(self) -> list[Line]:
        letters = await self._ports[LEDGER].dead_letters.page(Filter(), limit=EVERYTHING)
        return [Line(letter.endpoint, m.source, m.id, "") for letter in letters if (m := letter.message) is not None]


@asynccontextmanager
async def staged(place: Place) -> AsyncIterator[Stage]:
    """Make a run's queues and tables; drops them at the end."""
    books = Books(place.prefix, place.store)
    async with AsyncExitStack() as stack:
        endpoints, sinks = make(place), Topology(endpoint=SINK, events=(MILES_FLOWN,))
        database = await stack.enter_async_context(open_database(place.store))
        stack.push_async_callback(_drop, database, books)
        await create(database, *schemas("store"))
        await create_user_tables(database, books.metadata)
        topologies = [sinks, *(endpoint.topology() for endpoint in endpoints)]
        await stack.enter_async_context(temporary_transport(place.transport, topologies))
        ports = {endpoint.name: await stack.enter_async_context(endpoint.opened()) for endpoint in endpoints}
        sink = await stack.enter_async_context(open_transport(place.transport, SINK))
        await sink.declare([sinks])
        yield Stage(place, ports, sink, database)


async def _drop(database: Database, books: Books) -> None:
    async with database.writing() as connection:
        await connection.run_sync(books.metadata.drop_all)
    await drop(database, *schemas("store"))


def _miles(books: Books) -> dict[str, Table]:
    return {LEDGER: books.ledger, LOYALTY: books.loyalty}


def _sunk(delivery: Delivery) -> Sunk:
    event = take_apart(delivery.headers, delivery.body)
    return Sunk(event.attributes["source"], event.attributes["id"], event.body)
