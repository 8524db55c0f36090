"""Messages under way while the rule changes by which an endpoint finds its entities: see docs/explanation/documents.md."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from onceonly import Context, Endpoint, entity, message
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.outbox import process
from onceonly.algorithms.settlement import BatchReport
from onceonly.config.deduplication import Deduplication, DedupStore, History
from onceonly.endpoint.host import host_of
from onceonly.model.errors import OutcomeUnknown
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.record import Answer
from onceonly.ports.bundle import Ports
from onceonly.ports.transport import Topology, Transport
from tests.endpoint.chain_harness import fresh_place

KINDS = ("sqlite", "memory")
PAID = Message(id="m1", source="web", type="pay", body=b'{"owner": "ann", "account": "A"}')


@message("pay")
@dataclass
class Pay:
    """A message with two fields that can be a key."""

    owner: str
    account: str


@dataclass
class Account:
    """An entity."""

    payments: int = 0


@entity("Account")
@dataclass
class Konto:
    """The same entity; the class has another name."""

    payments: int = 0


@dataclass
class Conto:
    """Another class, and so another entity."""

    payments: int = 0


class Deployment:
    """Versions of one endpoint, on the same store and the same queue."""

    def __init__(self, kind: str, folder: Path, deduplication: Deduplication | None = None) -> None:
        self._places = {"store": fresh_place(kind, folder), "transport": fresh_place("memory", folder)}
        self._deduplication = deduplication or History()
        self.seen: list[tuple[str, int]] = []

    def version(self, kind: Any, key: str) -> Endpoint:
        """Make a version that works on entities of this class, and finds them by this field."""
        made = Endpoint("till", **self._places, deduplication=self._deduplication)

        @made.handler(entity=kind, key=key)
        def pay(command: Pay, account: kind, context: Context) -> None:
            account.payments += 1
            self.seen.append((getattr(command, key), account.payments))
            context.send({"owner": command.owner}, type="paid", to="audit")

        return made

    @asynccontextmanager
    async def running(self, *versions: tuple[Any, str]) -> AsyncIterator[list[Ports]]:
        """Open versions side by side, in the order in which they were deployed."""
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(host_of(self.version(*each)).opened()) for each in versions]
            await opened[0].transport.declare([Topology(endpoint="till"), Topology(endpoint="audit")])
            yield opened


async def take(ports: Ports, *messages: Message) -> BatchReport:
    """Send these, and let this version take all that waits."""
    await ports.transport.send([Send(message=each, to="till") for each in messages])
    return await deliver(await ports.transport.receive(10, 0), ports)


class Cut:
    """A broker that is away when something is sent."""

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Fail."""
        raise OutcomeUnknown("away")


async def die_after_the_commit(ports: Ports) -> None:
    """Handle the payment up to its commit: what it sends is pending."""
    read = ports.handlers.read(await arrived(ports))
    assert isinstance(read, Message)
    with pytest.raises(OutcomeUnknown):
        await process([read], ports._replace(transport=cast("Transport", Cut())))


async def arrived(ports: Ports) -> Delivery:
    """Return the payment as it comes, and leave it in the queue."""
    await ports.transport.send([Send(message=PAID, to="till")])
    (delivery,) = await ports.transport.receive(1, 0)
    await ports.transport.release([delivery])
    return delivery


@pytest.mark.parametrize(("kind", "seen"), [("sqlite", [("ann", 1)]), ("memory", [("ann", 1), ("A", 1)])])
async def test_with_another_key_a_copy_is_known_in_sql_and_handled_again_in_documents(
    kind: str, seen: list[tuple[str, int]], tmp_path: Path
) -> None:
    """A claim knows the message whatever it is about; a document knows only what was about its own entity."""
    deployment = Deployment(kind, tmp_path)
    async with deployment.running((Account, "owner"), (Account, "account")) as (old, new):
        await take(old, PAID)
        await take(new, PAID)
    assert deployment.seen == seen


@pytest.mark.parametrize("kind", KINDS)
async def test_a_dedup_store_knows_a_finished_message_under_any_key(kind: str, tmp_path: Path) -> None:
    """Its marks are about messages."""
    deployment = Deployment(kind, tmp_path, DedupStore(fresh_place("memory", tmp_path)))
    async with deployment.running((Account, "owner"), (Account, "account")) as (old, new):
        assert (await take(old, PAID)).handled == 1
        assert (await take(new, PAID)).known == 1


@pytest.mark.parametrize(("kind", "seen"), [("sqlite", [("ann", 1)]), ("memory", [("ann", 1), ("A", 1)])])
async def test_with_another_key_what_was_committed_and_not_sent_is_found_in_sql_only(
    kind: str, seen: list[tuple[str, int]], tmp_path: Path
) -> None:
    """In documents the old record is looked for at the new entity, so the handler runs again, and the old record stays."""
    deployment = Deployment(kind, tmp_path)
    async with deployment.running((Account, "owner"), (Account, "account")) as (old, new):
        await die_after_the_commit(old)
        await take(new)
        assert (await new.transport.depth("audit")).waiting == 1
        again = await take(old, PAID)
        assert (deployment.seen, again.known) == (seen, 1)
        assert (await new.transport.depth("audit")).waiting == len(seen)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_class_may_be_renamed_where_the_entity_keeps_its_name(kind: str, tmp_path: Path) -> None:
    """Copies are known, and the next message finds the state."""
    deployment = Deployment(kind, tmp_path)
    async with deployment.running((Account, "owner"), (Konto, "owner")) as (old, new):
        await take(old, PAID)
        assert (await take(new, PAID)).known == 1
        await take(new, replace(PAID, id="m2"))
    assert deployment.seen == [("ann", 1), ("ann", 2)]


@pytest.mark.parametrize("kind", KINDS)
async def test_under_another_name_every_entity_begins_afresh(kind: str, tmp_path: Path) -> None:
    """Its state is where it was, and nobody looks there."""
    deployment = Deployment(kind, tmp_path)
    async with deployment.running((Account, "owner"), (Conto, "owner"), (Account, "owner")) as (old, new, back):
        await take(old, PAID)
        await take(new, replace(PAID, id="m2"))
        await take(back, replace(PAID, id="m3"))
    assert deployment.seen == [("ann", 1), ("ann", 1), ("ann", 2)]
