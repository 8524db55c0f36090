"""What endpoints keep, and where: the adapters of each way, and what each looks like to the auditor."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.store import StoredRecord, StoreWorld
from onceonly.adapters.memory.world import WorldDriver, WorldPart
from onceonly.documents.register import LISTED
from onceonly.formats.documents import decode_entity
from onceonly.model.identity import Identity, claim_key, fingerprint
from onceonly.model.remote import HTTP
from onceonly.model.transaction import IdempotencyEntry, key_of
from onceonly.ports.bundle import Ports
from onceonly.ports.transactions import Controls
from onceonly_verify.clock import BUCKETING, ClockDriver, claimed_before, first_ring
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.programs import Programs
from onceonly_verify.workload import (
    BLOB,
    SWEPT_TOKENS,
    WITH_ENTITIES,
    CheckedHandlers,
    DeduplicationMode,
    EventClock,
    Workload,
    decode_rows,
    identities_of,
    mark_text,
    name_of,
)

TOKENS, DEDUP, ARTIFACTS, REMOTE = "tokens", "dedup store", "artifacts of kind blob", "the other service"
"""The names of places beside the stores."""
STARTS = "starts"
"""The name of the place that knows which runs have begun and not ended."""
ANSWERS = "answers"
"""The name of the place that knows what clients were told."""
LONG = timedelta(days=7)
"""How long documents keep history; no time passes under the checker."""


class AnswersWorld(Struct, frozen=True):
    """What clients were told: the attempt and the answer, or the attempts of which nothing happened for sure."""

    told: frozenset[tuple[str, str]] = frozenset()
    failed: frozenset[str] = frozenset()


class CheckedIdGenerator:
    """Ids for tokens and attempts: fresh for each run of a program, and the same in every replay."""

    def __init__(self, driver: CheckerDriver) -> None:
        """Count with this driver."""
        self._driver = driver

    def new_id(self) -> str:
        """Name it after the run."""
        return mark_text(self._driver.token())


def ports_of(workload: Workload, programs: Programs, driver: CheckerDriver, *, endpoint: str) -> Ports:
    """Put the memory adapters of one endpoint's worker together, on the checker's driver."""
    clock = EventClock()
    plain: WorldDriver = driver
    rules = programs.transports.BrokerRules(takes_copies=workload.takes_copies)
    store = store_of(workload, programs, driver, endpoint=endpoint)
    transactions = _transactions_of(workload, programs, driver, store, endpoint=endpoint)
    is_searched = workload.deduplication not in WITH_ENTITIES
    controls = None if is_searched or not transactions else Controls(transactions, (1,) * workload.looks, endpoint, clock)
    return Ports(
        endpoint=endpoint,
        store=store,
        fence=store,
        pending=store if is_searched else None,
        handlers=CheckedHandlers(workload, driver, programs=programs, endpoint=endpoint),
        admission=_admission_of(workload, programs, driver, endpoint=endpoint),
        effects=_effects_of(workload, programs, driver, store),
        transport=programs.transports.MemoryTransport(plain, endpoint, clock=clock, rules=rules),
        dead_letters=programs.stores.MemoryDeadLetters(plain, clock=clock),
        transactions=transactions,
        controls=controls,
        starts=programs.starts.MemoryStarts(plain, endpoint, clock=clock),
    )


def store_of(workload: Workload, programs: Programs, driver: CheckerDriver, *, endpoint: str) -> Any:
    """Give an endpoint's store."""
    clock = EventClock()
    if workload.deduplication in {DeduplicationMode.CLAIMS, DeduplicationMode.ELSEWHERE}:
        return programs.stores.MemoryStore(driver, endpoint, clock=clock, blocking=workload.blocking)
    if workload.deduplication is DeduplicationMode.RING:
        timed = ClockDriver(driver)
        return programs.ring.MemoryRingStore(timed, endpoint, bucketing=BUCKETING, clock=clock, blocking=workload.blocking)
    if workload.deduplication is DeduplicationMode.DATABASE:
        return programs.database.MemoryDatabase(driver, endpoint, clock=clock)
    documents = programs.memory_documents.MemoryDocuments(driver, f"store of {endpoint}")
    history = LONG if workload.deduplication is DeduplicationMode.HISTORY else None
    return programs.documents.DocumentStore(documents, endpoint, clock=clock, history=history)


def _transactions_of(workload: Workload, programs: Programs, driver: CheckerDriver, store: Any, *, endpoint: str) -> Any:
    if not workload.clients:
        return None
    if workload.deduplication in WITH_ENTITIES:
        return programs.document_transactions.DocumentTransactions(store, retention=1)
    blocking = workload.blocking
    return programs.transactions.MemoryTransactions(driver, endpoint, clock=EventClock(), blocking=blocking)


def place_of(workload: Workload, programs: Programs, endpoint: str) -> WorldPart:
    """Tell which part of the world is an endpoint's store."""
    store = store_of(workload, programs, CheckerDriver(None), endpoint=endpoint)
    place: WorldPart = store.documents.place if workload.deduplication in WITH_ENTITIES else store.place
    return place


def tokens_of(programs: Programs, driver: CheckerDriver) -> Any:
    """Give the token store."""
    return programs.tokens.MemoryTokens(driver, clock=EventClock())


def remote_requests_of(programs: Programs, driver: CheckerDriver, *, endpoint: str) -> Any:
    """Give what an endpoint keeps of what other services ask."""
    return programs.remote_requests.MemoryRemoteRequests(driver, endpoint, clock=EventClock())


def first_worlds(workload: Workload, programs: Programs) -> dict[str, Any]:
    """Give what the stores hold at the beginning, and what is beside them, by their places' names."""
    places = [place_of(workload, programs, endpoint) for endpoint in workload.endpoints]
    worlds = {place.name: place.empty for place in places}
    if workload.deduplication is DeduplicationMode.RING:
        worlds = {place.name: first_ring(programs) for place in places}
        if workload.handled_before:
            worlds[places[0].name] = _handled_before(workload, programs, worlds[places[0].name])
    live = workload.tokens()
    if workload.deduplication is DeduplicationMode.DATABASE:
        worlds = {places[0].name: programs.database.DatabaseWorld(tokens=live)}
    if workload.deduplication in SWEPT_TOKENS:
        worlds[TOKENS] = programs.tokens.TokensWorld(live=live)
    if workload.deduplication is DeduplicationMode.DEDUP:
        worlds[DEDUP] = programs.dedup.DedupWorld()
    worlds[STARTS] = programs.starts.StartsWorld(explained=workload.supervised)
    if workload.clients:
        worlds[ANSWERS] = AnswersWorld()
    if workload.requests or workload.followed:
        worlds[REMOTE] = programs.remote.RemoteWorld(workload.answered(), workload.answered())
    if workload.asked:
        requests = remote_requests_of(programs, CheckerDriver(None), endpoint=workload.endpoints[0])
        worlds[requests.place.name] = requests.place.empty
    if workload.artifacts:
        worlds[ARTIFACTS] = programs.artifacts.ArtifactsWorld()
    return worlds


def _handled_before(workload: Workload, programs: Programs, world: Any) -> Any:
    """Give what an older version left that has handled all arrivals, and sent nothing."""
    endpoint, mark = workload.endpoints[0], "before"
    handlers = CheckedHandlers(workload, CheckerDriver(None), programs=programs, endpoint=endpoint)
    messages = {each.message().identity: each.message() for each in workload.arrivals}
    decided = {who: handlers.effects(who, each.body.decode(), mark) for who, each in messages.items()}
    claimed = claimed_before(world, tuple(messages.values()), decided, programs.ring.RingSettings(BUCKETING, world.now))
    return replace(claimed, notes=tuple((each.body.decode(), mark) for each in messages.values()))


def _admission_of(workload: Workload, programs: Programs, driver: CheckerDriver, *, endpoint: str) -> Any:
    subscribers: dict[str, tuple[str, ...]] = {}
    if workload.deduplication is DeduplicationMode.DEDUP:
        return programs.admission.DedupStoreAdmission(endpoint, programs.dedup.MemoryMarkStore(driver))
    if workload.deduplication in SWEPT_TOKENS:
        return programs.admission.TokenAdmission(endpoint, tokens_of(programs, driver), subscribers, CheckedIdGenerator(driver))
    if workload.deduplication is DeduplicationMode.DATABASE:
        return programs.admission.TokensInStore(subscribers, CheckedIdGenerator(driver))
    return programs.admission.StoreAdmission()


def _effects_of(workload: Workload, programs: Programs, driver: CheckerDriver, store: Any) -> Any:
    if not workload.makes:
        return programs.effects.NoArtifacts()
    remote = programs.remote.MemoryRemote(driver) if workload.requests or workload.followed else None
    artifacts = {BLOB: programs.artifacts.MemoryArtifacts(driver, BLOB)} if workload.artifacts else {}
    register = programs.register.DocumentRegister(store)
    kinds = {**artifacts, HTTP: remote} if remote else artifacts
    return programs.effects.RegisteredEffects(
        store, register, kinds, ids=CheckedIdGenerator(driver), clock=EventClock(), remote=remote
    )


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
        first = workload.endpoints[0]
        attempts = {attempt: Identity(first, attempt) for attempt in workload.attempts}
        self._attempts = {claim_key(first, identity): identity for identity in attempts.values()}
        self._keys = {key_of(first, client.key).hex(): client.key for client in workload.clients if client.key}

    def stores(self, worlds: Mapping[str, Any]) -> dict[str, StoreWorld]:
        """Show the store of each endpoint; `worlds` are by their places' names."""
        return {endpoint: self._view(endpoint)(worlds, endpoint) for endpoint in self._workload.endpoints}

    def _view(self, _endpoint: str) -> Callable[[Mapping[str, Any], str], StoreWorld]:
        plain = dict.fromkeys((DeduplicationMode.CLAIMS, DeduplicationMode.ELSEWHERE), self._plain)
        views = {**plain, DeduplicationMode.RING: self._ring, DeduplicationMode.DATABASE: self._database}
        return views.get(self._workload.deduplication, self._documents)

    def _plain(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        store: StoreWorld = worlds[self._places[endpoint]]
        return store

    def _ring(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        """What was handled counts as claimed, also when it is forgotten: what matters is that it is not handled again."""
        world = worlds[self._places[endpoint]]
        claims = {claim for held in world.buckets for claim in held.claims} | {claim for claim, _ in world.arrivals}
        bodies = {name_of(text): fingerprint(text.encode()) for text, _ in world.notes}
        claims |= {(identity, bodies[name]) for identity, name in self._names[endpoint].items() if name in bodies}
        records = tuple(StoredRecord(each.record, each.at) for each in world.records)
        return StoreWorld(frozenset(claims), records, world.notes, tuple(world.open))

    def _database(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        """A row whose message's token is gone, and a record, are what says that it was handled."""
        world = worlds[self._places[endpoint]]
        notes = tuple((key, value) for owner, key, value in world.notes if owner == endpoint)
        mine = [each for each in world.records if each.endpoint == endpoint]
        records = tuple(StoredRecord(each.record, 0) for each in mine)
        bodies = {name_of(text): fingerprint(text.encode()) for text, _ in notes}
        claims = frozenset(
            (identity, bodies[name]) for identity, name in self._names[endpoint].items() if name in bodies
        ) | frozenset((each.record.identity, b"") for each in mine if self._names[endpoint][each.record.identity] not in bodies)
        return StoreWorld(claims, records, notes, tuple(world.open))

    def _documents(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        names = {claim_key(endpoint, identity): identity for identity in self._names[endpoint]}
        keys: list[tuple[str, IdempotencyEntry]] = []
        claims: set[tuple[Identity, bytes]] = set()
        notes: list[tuple[str, str]] = []
        records: list[StoredRecord] = []
        for each in worlds[self._places[endpoint]].written:
            if each.body is None or each.key.startswith(LISTED):
                continue
            document = decode_entity(each.key, each.body)
            notes += decode_rows(document.state)
            committed = [(self._keys[name], found.entry(each.key)) for name, found in document.keys.items()]
            keys += committed
            if each.key == document.leads_to:  # nothing else is committed with a key of its own document
                notes += [(self._workload.attempts[kept.attempt].name, kept.attempt) for _, kept in committed]
            for key, kept in document.records.items():
                identity = self._attempts.get(bytes.fromhex(key)) or names[bytes.fromhex(key)]
                if identity in self._attempts.values():
                    pending = kept.record(identity, each.key)
                    records += [StoredRecord(pending, 0)] if pending.effects else []
                    continue
                claims.add((identity, bytes.fromhex(kept.body)))
                record = kept.record(identity, each.key)
                if record.is_pending or self._workload.deduplication is not DeduplicationMode.HISTORY:
                    records.append(StoredRecord(record, 0))
        recorded = {identity for identity, _ in claims}
        bodies = {name_of(text): fingerprint(text.encode()) for text, _ in notes}
        for identity, name in self._names[endpoint].items():
            if identity not in recorded and self._is_done_elsewhere(worlds, endpoint, identity, name in bodies):
                claims.add((identity, self._marked(worlds, endpoint, identity) or bodies.get(name, b"")))
        claims |= self._beside(worlds, endpoint, bodies)
        return StoreWorld(frozenset(claims), tuple(records), tuple(notes), (), tuple(keys))

    def _marked(self, worlds: Mapping[str, Any], endpoint: str, identity: Identity) -> bytes:
        """Give the fingerprint with which a message is marked as done; b"" without one."""
        marks: dict[bytes, bytes] = (
            dict(worlds[DEDUP].fingerprints) if self._workload.deduplication is DeduplicationMode.DEDUP else {}
        )
        return marks.get(claim_key(endpoint, identity), b"")

    def _beside(self, worlds: Mapping[str, Any], endpoint: str, bodies: Mapping[str, bytes]) -> set[tuple[Identity, bytes]]:
        """Give the claims of messages under one id that are about several entities: a mark is about one of them."""
        several = [each for each in self._workload.arrivals if each.name in self._workload.mismatched() & bodies.keys()]
        entities = {self._workload.entity(each.name) for each in several}
        if self._workload.deduplication is not DeduplicationMode.DEDUP or len(entities) < 2:  # noqa: PLR2004
            return set()
        marked = {each.message().identity for each in several if self._marked(worlds, endpoint, each.message().identity)}
        return {(each.message().identity, bodies[each.name]) for each in several if each.message().identity in marked}

    def _is_done_elsewhere(self, worlds: Mapping[str, Any], endpoint: str, identity: Identity, has_row: bool) -> bool:  # noqa: FBT001
        if self._workload.deduplication is DeduplicationMode.DEDUP:
            return claim_key(endpoint, identity) in worlds[DEDUP].keys
        return self._workload.deduplication is DeduplicationMode.TOKENS and has_row
