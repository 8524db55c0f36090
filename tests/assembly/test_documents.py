"""From URLs and settings to documents, admissions and places for blobs: what is put together, and what is refused."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import DedupStore, Endpoint, History, Off, RetryableError, SetupError, Tokens, systems
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.store import MemoryStore
from onceonly.adapters.redis import documents as redis
from onceonly.algorithms import admission
from onceonly.algorithms.effects import NoArtifacts, RegisteredEffects
from onceonly.assembly import open_database, open_dead_letters, open_store, schemas, wire
from onceonly.assembly.documents import open_documents
from onceonly.config.deduplication import Deduplication
from onceonly.config.endpoint import Settings
from onceonly.config.location import locate
from onceonly.documents.dead_letters import DocumentDeadLetters
from onceonly.documents.projection_effects import ProjectionEffects
from onceonly.documents.store import DocumentStore
from onceonly.endpoint.host import host_of
from onceonly.errors import DriverMissing
from onceonly.model.identity import Identity
from onceonly.model.projection import ProjectedWrite
from onceonly.model.record import Answer, Record
from onceonly.model.remote import RemoteRequest, Verb
from onceonly.ports.bundle import Ports
from onceonly.ports.documents import Change
from onceonly.runtime.environment import Environment, SystemClock
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.sql.schema import create
from onceonly.sql.store import SqlStore
from onceonly.testing.environment import RunClock
from tests.log_events import event_in
from tests.runtime.harness import ScriptedHandlers

SERVED: dict[systems.Role, set[str]] = {
    "store": {"azure-blob", "azure-table", "cosmos", "dynamodb", "mongodb", "ravendb", "redis", "s3", "sqlite", "memory"},
    "deduplication": {
        "azure-blob",
        "azure-table",
        "cosmos",
        "dynamodb",
        "mongodb",
        "ravendb",
        "redis",
        "s3",
        "sqlite",
        "memory",
    },
    "tokens": {"azure-blob", "azure-table", "cosmos", "dynamodb", "mongodb", "ravendb", "redis", "s3", "sqlite", "memory"},
    "dead_letters": {
        "azure-blob",
        "azure-table",
        "cosmos",
        "dynamodb",
        "mongodb",
        "ravendb",
        "redis",
        "s3",
        "sqlite",
        "memory",
    },
    "blobs": {"azure-blob", "folder", "s3", "memory"},
    "transport": {"amqp", "azure-queue", "redis", "sqlite", "memory"},
}


def settings(**changed: Any) -> Settings:
    """Make settings on memory adapters."""
    return Settings(**{"name": "shop", "store": "memory://a", "transport": "memory://a"} | changed)


def nobody(_traits: object, _blobs: object) -> Any:
    """Return handlers that are never called: nothing is received here."""
    return ScriptedHandlers()


@pytest.mark.parametrize("role", SERVED)
def test_each_scheme_serves_its_roles_and_no_others(role: systems.Role) -> None:
    """Blobs are no store, RabbitMQ keeps nothing, and of the documents only Redis has queues."""
    named = {name for roles in SERVED.values() for name in roles}
    assert {name for name, system in systems.systems().items() if name in named and system.serves(role)} == SERVED[role]


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("dynamodb://eu/table", "dynamodb"),
        ("s3://bucket", "s3"),
        ("azure-table://account/t", "azure-table"),
        ("azure-blob://account/c", "azure-blob"),
        ("cosmos://a/d/c", "cosmos"),
        ("mongodb://h/d", "mongodb"),
        ("mongodb+srv://h/d", "mongodb"),
        ("ravendb://h/d", "ravendb"),
        ("ravendb+tls://h/d", "ravendb"),
        ("redis://h", "redis"),
        ("rediss://h", "redis"),
    ],
)
def test_a_missing_driver_is_told_with_its_extra(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the namespace that its package is in is missing altogether."""
    monkeypatch.setattr(systems, "find_spec", lambda _: None)
    with pytest.raises(DriverMissing) as caught:
        locate(url, "store").require_driver("store")
    assert f"pip install 'onceonly[{extra}]'" in str(caught.value)


@pytest.mark.parametrize("url", ["mongodb://h/d", "folder:///x", "s3://b"])
def test_documents_and_blobs_are_no_queue(url: str) -> None:
    """Told with what there is."""
    with pytest.raises(SetupError, match=r"no transport for .*there is amqp://"):
        locate(url, "transport").require_driver("transport")


def test_documents_offer_entities_and_no_session() -> None:
    """So a handler that wants a session is refused at start."""
    offer = locate("redis://h", "store").offer
    assert (offer.entities, offer.asynchronous, offer.synchronous) == (True, frozenset(), frozenset())


@pytest.mark.parametrize(
    ("deduplication", "store", "kind", "keeps"),
    [
        (History(timedelta(days=2)), "redis", admission.StoreAdmission, 2 * 86_400_000),
        (DedupStore("memory://done"), "redis", admission.DedupStoreAdmission, None),
        (Tokens("memory://tokens"), "redis", admission.TokenAdmission, None),
        (Off(), "redis", admission.StoreAdmission, None),
        (DedupStore("memory://done"), "memory", admission.DedupStoreAdmission, None),
        (Tokens("memory://a"), "memory", admission.TokenAdmission, None),
    ],
)
async def test_what_stays_in_documents_follows_from_the_deduplication(  # noqa: PLR0917 - the arguments of the cases
    deduplication: Deduplication, store: str, kind: type, keeps: int | None, redis_url: str
) -> None:
    """A history is kept in them only where it is the rule."""
    place = redis_url if store == "redis" else "memory://a"
    async with wire(settings(store=place, deduplication=deduplication), nobody) as ports:
        assert isinstance(ports.store, DocumentStore)
        assert ports.store.history == keeps
        assert type(ports.admission) is kind
        assert isinstance(ports.dead_letters, DocumentDeadLetters) == (store == "redis")


@pytest.mark.parametrize(
    ("deduplication", "kind", "claim_mode"),
    [
        (History(), admission.StoreAdmission, "history"),
        (DedupStore("memory://done"), admission.DedupStoreAdmission, "until forgotten"),
        (Tokens("memory://tokens"), admission.TokenAdmission, "until forgotten"),
        (Tokens(), admission.TokensInStore, "tokens"),
        (Off(), admission.StoreAdmission, "nothing"),
    ],
)
async def test_what_a_sql_store_keeps_follows_from_the_deduplication(
    deduplication: Deduplication, kind: type, claim_mode: str, tmp_path: Path
) -> None:
    """Claims, claims until they are forgotten, tokens, or nothing."""
    async with wire(settings(store=f"sqlite:///{tmp_path}/shop.db", deduplication=deduplication), nobody) as ports:
        assert isinstance(ports.store, SqlStore)
        assert type(ports.admission) is kind
        assert ports.store._claim_mode.value == claim_mode


async def test_tokens_at_the_url_of_the_store_are_in_the_store(tmp_path: Path) -> None:
    """One commit writes both, and there is nothing to sweep."""
    place = f"sqlite:///{tmp_path}/shop.db"
    async with wire(settings(store=place, deduplication=Tokens(place)), nobody) as ports:
        assert isinstance(ports.admission, admission.TokensInStore)
        assert ports.maintenance.tokens is None
        assert ports.maintenance.drops is not None


@pytest.mark.parametrize(("entities", "kind"), [(False, MemoryStore), (True, DocumentStore)])
async def test_memory_keeps_documents_where_handlers_work_on_entities(entities: bool, kind: type) -> None:  # noqa: FBT001 - pytest's
    """And notes elsewhere."""
    async with wire(settings(), nobody, entities=entities) as ports, open_store(settings(), entities=entities) as same:
        assert type(ports.store) is type(same.store) is kind


async def test_a_place_for_blobs_brings_effects_and_a_janitor(tmp_path: Path) -> None:
    """Without one there is neither."""
    async with wire(settings(blobs=f"folder://{tmp_path}"), nobody) as ports:
        assert isinstance(ports.effects, RegisteredEffects)
        assert MaintenanceLoop in runners(ports)
    async with wire(settings(), nobody) as ports:
        assert isinstance(ports.effects, NoArtifacts)
        assert MaintenanceLoop not in runners(ports)


async def test_prepared_tokens_bring_a_janitor_with_their_own_age() -> None:
    """They are the only thing that a dead attempt leaves."""
    chosen = settings(deduplication=Tokens("memory://tokens", sweep_after=timedelta(seconds=31)))
    async with wire(chosen, nobody) as ports:
        assert ports.maintenance.after == 31.0
        assert MaintenanceLoop in runners(ports)


async def test_marks_in_sql_bring_a_janitor_that_removes_expired_ones(tmp_path: Path) -> None:
    """A SQL database removes nothing by itself; memory forgets all of them soon."""
    done = f"sqlite:///{tmp_path}/done.db"
    async with wire(settings(deduplication=DedupStore(done)), nobody) as ports:
        assert MaintenanceLoop in runners(ports)
        async with open_documents(done, clock=SystemClock()) as documents:
            await documents.save([Change(key="done/old", body=b"{}", expires=1), Change(key="done/new", body=b"{}")])
            assert ports.maintenance.marks is not None
            assert await ports.maintenance.marks.remove_expired() == 1
            assert await documents.keys("done/") == ("done/new",)
    async with wire(settings(deduplication=DedupStore("memory://done")), nobody) as ports:
        assert MaintenanceLoop not in runners(ports)


def runners(ports: Ports) -> list[type]:
    """Return what would run on these ports."""
    shop = Endpoint("shop", store="memory://a", transport="memory://a")
    return [type(runner) for runner in host_of(shop).runners(ports, shop.settings)]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"blobs": "folder:///no/such/folder"}, "cannot use its blobs folder:///no/such/folder: folder"),
        ({"blobs": "folder://relative/x"}, r"three slashes and an absolute path"),
        ({"blobs": "redis://h"}, "no blobs for redis://; there is azure-blob://, folder://, memory://, s3://"),
        ({"deduplication": DedupStore("amqp://h")}, "no deduplication for amqp://"),
        ({"deduplication": Tokens("folder:///x")}, "no tokens for folder://"),
        ({"store": "folder:///x"}, "no store for folder://"),
        ({"isolation": "SERIALIZABLE", "deduplication": Tokens("memory://b")}, "isolation= needs a SQL store"),
        ({"deduplication": DedupStore("redis://u:secret@127.0.0.1:1/0")}, "cannot use its deduplication redis://127.0.0.1:1/0"),
        ({"deduplication": DedupStore("sqlite:////no/such/place.db")}, "cannot use its deduplication sqlite"),
    ],
)
async def test_what_cannot_be_used_is_told_with_its_setting(changed: dict[str, Any], complaint: str) -> None:
    """And without its password."""
    with pytest.raises((SetupError, RetryableError)) as caught:
        async with wire(settings(**changed), nobody):
            pass
    assert complaint in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"store": "redis://h"}, "enlist needs a SQL store"),
        ({"store": "sqlite:///a.db", "deduplication": Tokens()}, "cannot issue the tokens"),
        ({"store": "sqlite:///a.db", "deduplication": Tokens("memory://b")}, "cannot issue the tokens"),
        ({"store": "sqlite:///a.db", "deduplication": Off()}, "which stores no records"),
    ],
)
def test_enlisting_is_refused_where_a_message_would_be_lost(changed: dict[str, Any], complaint: str) -> None:
    """With what to do instead."""
    shop = Endpoint("shop", **{"transport": "memory://a"} | changed)
    with pytest.raises(SetupError, match=complaint):
        shop.enlist(AsyncSession())


class Opened(MemoryDocuments):
    """Documents that count how often they are open, and have something to say."""

    count = 0
    closed = 0
    away = False

    async def check(self) -> tuple[str, ...]:
        """Warn, or be away."""
        if Opened.away:
            raise RetryableError("away")
        return ("its reads are slow",)

    @classmethod
    def opening(cls, live: Any) -> Callable[..., Any]:
        """Return what opens them."""

        @asynccontextmanager
        async def open_documents(_url: str, *, clock: object) -> AsyncIterator[Opened]:  # noqa: ARG001 - as all adapters
            cls.count += 1
            try:
                yield cls(live)
            finally:
                cls.closed += 1

        return open_documents


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Opened]:
    """Have Redis URLs open documents in memory."""
    from onceonly.adapters.memory.world import Live  # noqa: PLC0415 - one world for each test

    monkeypatch.setattr(redis, "open_documents", Opened.opening(Live()))
    Opened.count = Opened.closed = 0
    Opened.away = False
    return Opened


async def test_one_place_is_opened_once_for_all_its_roles_and_closed_at_the_end(counted: type[Opened]) -> None:
    """Store, tokens and dead letters share its connections."""
    place = "redis://shared/0"
    chosen = settings(store=place, dead_letters=place, deduplication=Tokens(place))
    async with wire(chosen, nobody), open_dead_letters(place):
        assert (counted.count, counted.closed) == (1, 0)
    assert (counted.count, counted.closed) == (1, 1)


async def test_a_place_that_is_away_at_start_is_closed_again(counted: type[Opened]) -> None:
    """It is tried again later, with a new connection."""
    Opened.away = True
    with pytest.raises(RetryableError):
        async with open_documents("redis://away/0", clock=SystemClock()):
            pass
    assert (counted.count, counted.closed) == (1, 1)


async def test_a_warning_is_logged_once(counted: type[Opened], caplog: pytest.LogCaptureFixture) -> None:
    """However often the place is opened."""
    for _ in range(2):
        async with open_documents("redis://u:secret@slow/0", clock=SystemClock()):
            pass
    assert counted.count == 2
    (record,) = caplog.records
    assert (record.levelno, event_in(record)) == (logging.WARNING, "document store warning")
    assert (vars(record)["place"], vars(record)["reason"]) == ("redis://slow/0", "its reads are slow")


@pytest.mark.parametrize("deduplication", ["history", "dedup"])
async def test_a_janitor_removes_tombstones_of_projections_where_the_service_does_not(
    tmp_path: Path, deduplication: str
) -> None:
    """In a SQL database, whose documents are removed by a worker; next to the marks of a dedup store."""
    places = [f"sqlite:///{tmp_path}/{name}.db" for name in ("cache", "search", "done")]
    for place in places:
        async with open_database(place) as database:
            await create(database, *schemas("documents"))
    clock = RunClock()
    chosen = settings(
        projections={"cache": places[0], "search": places[1]},
        deduplication=DedupStore(places[2]) if deduplication == "dedup" else History(),
    )
    async with wire(chosen, nobody, environment=Environment(clock=clock)) as ports:
        cache = ports.effects
        assert isinstance(cache, ProjectionEffects)
        writes = [ProjectedWrite(name, "k", 2) for name in ("cache", "search")]
        calls = tuple(RemoteRequest(Verb.WRITE, write.url, write) for write in writes)
        record = Record(Identity("web", "a"), requests=calls)
        assert await cache.call([record]) == {record.identity: Answer.TAKEN}
        expires = ports.maintenance.marks
        assert expires is not None
        assert ports.maintenance.has_tasks
        assert await expires.remove_expired() == 0
        assert [await count(place) for place in places[:2]] == [1, 1]
        clock.advance(timedelta(days=8).total_seconds())
        await expires.remove_expired()
        assert [await count(place) for place in places[:2]] == [0, 0]


async def count(place: str) -> int:
    """Count the documents of a SQL database."""
    async with open_documents(place, clock=RunClock()) as documents:
        return len(await documents.keys(""))
