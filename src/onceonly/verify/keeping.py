"""What endpoints keep, and where: the adapters of each way, and what each looks like to the auditor."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from onceonly.drivers.memory import Driver, Place
from onceonly.model.identity import Identity, claim_key, fingerprint
from onceonly.ports.bundle import Ports
from onceonly.serialization.documents import decode_entity
from onceonly.stores.document_register import LISTED
from onceonly.stores.memory import Stored, StoreWorld
from onceonly.verify.asking import Asking
from onceonly.verify.programs import Programs
from onceonly.verify.workload import (
    BLOB,
    WITH_ENTITIES,
    CheckedHandlers,
    Keeping,
    Standing,
    Workload,
    decode_rows,
    identities_of,
    mark_text,
    name_of,
)

TOKENS, DEDUP, THINGS = "tokens", "dedup store", "things of kind blob"
"""The names of places beside the stores."""
LONG = timedelta(days=7)
"""How long documents keep history; no time passes under the checker."""


class FreshIds:
    """Ids for tokens and attempts: fresh for each run of a program, and the same in every replay."""

    def __init__(self, driver: Asking) -> None:
        """Count with this driver."""
        self._driver = driver

    def fresh(self) -> str:
        """Name it after the run."""
        return mark_text(self._driver.token())


def ports_of(workload: Workload, programs: Programs, driver: Asking, *, endpoint: str) -> Ports:
    """Put the memory adapters of one endpoint's worker together, on the checker's driver."""
    clock = Standing()
    plain: Driver = driver
    store = store_of(workload, programs, driver, endpoint=endpoint)
    return Ports(
        endpoint=endpoint,
        store=store,
        handlers=CheckedHandlers(workload, driver, programs=programs, endpoint=endpoint),
        admission=_admission_of(workload, programs, driver, endpoint=endpoint),
        effects=_effects_of(workload, programs, driver, store),
        transport=programs.transports.MemoryTransport(plain, endpoint, clock=clock),
        dead_letters=programs.stores.MemoryDeadLetters(plain, clock=clock),
    )


def store_of(workload: Workload, programs: Programs, driver: Asking, *, endpoint: str) -> Any:
    """Give an endpoint's store."""
    clock = Standing()
    if workload.keeping is Keeping.CLAIMS:
        return programs.stores.MemoryStore(driver, endpoint, clock=clock, blocking=workload.blocking)
    if workload.keeping is Keeping.DATABASE:
        return programs.database.MemoryDatabase(driver, endpoint, clock=clock)
    documents = programs.memory_documents.MemoryDocuments(driver, f"store of {endpoint}")
    history = LONG if workload.keeping is Keeping.HISTORY else None
    return programs.documents.DocumentStore(documents, endpoint, clock=clock, history=history)


def place_of(workload: Workload, programs: Programs, endpoint: str) -> Place:
    """Tell which part of the world is an endpoint's store."""
    store = store_of(workload, programs, Asking(None), endpoint=endpoint)
    place: Place = store.documents.place if workload.keeping in WITH_ENTITIES else store.place
    return place


def tokens_of(programs: Programs, driver: Asking) -> Any:
    """Give the token store."""
    return programs.tokens.MemoryTokens(driver, clock=Standing())


def first_worlds(workload: Workload, programs: Programs) -> dict[str, Any]:
    """Give what the stores hold at the beginning, and what is beside them, by their places' names."""
    places = [place_of(workload, programs, endpoint) for endpoint in workload.endpoints]
    worlds = {place.name: place.empty for place in places}
    live = workload.tokens()
    if workload.keeping is Keeping.DATABASE:
        worlds = {places[0].name: programs.database.DatabaseWorld(tokens=live)}
    if workload.keeping is Keeping.TOKENS:
        worlds[TOKENS] = programs.tokens.TokensWorld(live=live)
    if workload.keeping is Keeping.DEDUP:
        worlds[DEDUP] = programs.dedup.DedupWorld()
    if workload.things:
        worlds[THINGS] = programs.things.ThingsWorld()
    return worlds


def _admission_of(workload: Workload, programs: Programs, driver: Asking, *, endpoint: str) -> Any:
    subscribers: dict[str, tuple[str, ...]] = {}
    if workload.keeping is Keeping.DEDUP:
        return programs.admission.Deduplicated(endpoint, programs.dedup.MemoryDedupStore(driver))
    if workload.keeping is Keeping.TOKENS:
        return programs.admission.Tokenized(endpoint, tokens_of(programs, driver), subscribers, FreshIds(driver))
    if workload.keeping is Keeping.DATABASE:
        return programs.admission.TokensInStore(subscribers, FreshIds(driver))
    return programs.admission.History()


def _effects_of(workload: Workload, programs: Programs, driver: Asking, store: Any) -> Any:
    if not workload.things:
        return programs.effects.NoThings()
    things = {BLOB: programs.things.MemoryThings(driver, BLOB)}
    register = programs.register.DocumentRegister(store)
    return programs.effects.Registered(store, register, things, ids=FreshIds(driver), clock=Standing())


def leaves_garbage(world: Any) -> bool:
    """Tell whether a sweeper would find something in this part of the world: prepared tokens, register rows."""
    if hasattr(world, "written"):
        return any(each.body is not None and each.key.startswith(LISTED) for each in world.written)
    return bool(getattr(world, "prepared", ()))


class Views:
    """Shows every endpoint's store as one with claims: a message that will never be handled again is claimed."""

    def __init__(self, workload: Workload, programs: Programs) -> None:
        """Look at worlds of this workload."""
        self._workload = workload
        self._places = {endpoint: place_of(workload, programs, endpoint).name for endpoint in workload.endpoints}
        self._names = identities_of(workload, programs)

    def stores(self, worlds: Mapping[str, Any]) -> dict[str, StoreWorld]:
        """Show the store of each endpoint; `worlds` are by their places' names."""
        return {endpoint: self._view(endpoint)(worlds, endpoint) for endpoint in self._workload.endpoints}

    def _view(self, _endpoint: str) -> Callable[[Mapping[str, Any], str], StoreWorld]:
        return {Keeping.CLAIMS: self._plain, Keeping.DATABASE: self._database}.get(self._workload.keeping, self._documents)

    def _plain(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        store: StoreWorld = worlds[self._places[endpoint]]
        return store

    def _database(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        """A row whose message's token is gone, and a record, are what says that it was handled."""
        world = worlds[self._places[endpoint]]
        notes = tuple((key, value) for owner, key, value in world.notes if owner == endpoint)
        mine = [each for each in world.records if each.endpoint == endpoint]
        records = tuple(Stored(each.record, 0) for each in mine)
        bodies = {name_of(text): fingerprint(text.encode()) for text, _ in notes}
        claims = frozenset(
            (identity, bodies[name]) for identity, name in self._names[endpoint].items() if name in bodies
        ) | frozenset((each.record.identity, b"") for each in mine if self._names[endpoint][each.record.identity] not in bodies)
        return StoreWorld(claims, records, notes, tuple(world.open))

    def _documents(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        names = {claim_key(endpoint, identity): identity for identity in self._names[endpoint]}
        claims: set[tuple[Identity, bytes]] = set()
        notes: list[tuple[str, str]] = []
        records: list[Stored] = []
        for each in worlds[self._places[endpoint]].written:
            if each.body is None or each.key.startswith(LISTED):
                continue
            document = decode_entity(each.key, each.body)
            notes += decode_rows(document.state)
            for key, kept in document.records.items():
                identity = names[bytes.fromhex(key)]
                claims.add((identity, bytes.fromhex(kept.body)))
                record = kept.record(identity, each.key)
                if record.effects or self._workload.keeping is not Keeping.HISTORY:
                    records.append(Stored(record, 0))
        recorded = {identity for identity, _ in claims}
        bodies = {name_of(text): fingerprint(text.encode()) for text, _ in notes}
        for identity, name in self._names[endpoint].items():
            if identity not in recorded and self._is_done_elsewhere(worlds, endpoint, identity, name in bodies):
                claims.add((identity, bodies.get(name, b"")))
        return StoreWorld(frozenset(claims), tuple(records), tuple(notes), ())

    def _is_done_elsewhere(self, worlds: Mapping[str, Any], endpoint: str, identity: Identity, has_row: bool) -> bool:  # noqa: FBT001
        if self._workload.keeping is Keeping.DEDUP:
            return claim_key(endpoint, identity) in worlds[DEDUP].keys
        return self._workload.keeping is Keeping.TOKENS and has_row
