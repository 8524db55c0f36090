"""What endpoints keep, and where: the adapters of each way, and what each looks like to the auditor."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.documents import WrittenDocument
from onceonly.adapters.memory.store import StoredRecord, StoreWorld
from onceonly.adapters.memory.transport import MemoryReceipt
from onceonly.adapters.memory.world import WorldDriver, WorldPart
from onceonly.documents.dedup import Mark
from onceonly.documents.register import LISTED
from onceonly.formats.documents import decode_entity
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.third_party import ApiCall
from onceonly.model.token import Owner, PreparedToken, Token
from onceonly.model.transaction import IdempotencyEntry, key_of
from onceonly.ports.bundle import Ports
from onceonly.ports.transactions import Controls
from onceonly_verify.board import BOARD, first_board, on_board
from onceonly_verify.checked_handlers import ROWS, CheckedHandlers, EventClock, clock_of, decode_rows
from onceonly_verify.clock import BUCKETING, ClockDriver, first_ring, first_rings
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.invariants.cleanups import CleanupLog, WatchedArtifacts, WatchedEffects, WatchedRegister, WatchedRequests
from onceonly_verify.memory_ports.third_party import URL
from onceonly_verify.names import fingerprint_of, identities_of, mark_text, name_of
from onceonly_verify.programs import Programs
from onceonly_verify.time_steps import CLOCK, STEP, ClockWorld, ExpiringDriver, ExpiringWorld
from onceonly_verify.time_steps import START as BEGINNING
from onceonly_verify.workload import (
    BLOB,
    DONE,
    NOWHERE,
    SPOILED,
    SWEPT_TOKENS,
    WITH_ENTITIES,
    Calls,
    DeduplicationMode,
    Workload,
)

TOKENS, DEDUP, ARTIFACTS, REMOTE = "tokens", "dedup store", "artifacts of kind blob", "the other service"
THIRD_PARTY = "a third party"
RETENTION = "stored retention"
"""The names of places beside the stores."""
STARTS = "starts"
"""The name of the place that knows which runs have begun and not ended."""
ANSWERS = "answers"
"""The name of the place that knows what clients were told."""
STUCK = "stuck "
"""How the ids of tokens begin that no sweeper removes."""
LONG = timedelta(days=7)
"""How long documents keep history; no time passes under the checker."""


class AnswersWorld(Struct, frozen=True):
    """What clients and other services were told: the attempt and the answer, or the attempts that certainly did nothing.

    `opened` are the attempts that began, where time passes.
    """

    told: frozenset[tuple[str, str]] = frozenset()
    failed: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    reused: frozenset[str] = frozenset()
    """The failed attempts whose key was said to be used for another request."""
    unsent: frozenset[str] = frozenset()
    """Attempts whose outcome was said to be unknown, although their commit was never sent."""
    responses: frozenset[tuple[str, str]] = frozenset()
    """The responses to requests of other services: what was asked, and the attempt that executed it."""


class CheckedIdGenerator:
    """Ids for tokens and attempts: fresh for each run of a program, and the same in every replay."""

    def __init__(self, driver: CheckerDriver) -> None:
        self._driver = driver

    def new_id(self) -> str:
        return mark_text(self._driver.token())


def ports_of(workload: Workload, programs: Programs, driver: CheckerDriver, *, endpoint: str, has_peers: bool = True) -> Ports:
    """Put the memory adapters of one endpoint's worker together, on the checker's driver; without peers, it calls nobody."""
    clock, still = clock_of(workload, driver), EventClock()
    plain: WorldDriver = driver
    rules = programs.transports.BrokerRules(takes_copies=workload.takes_copies)
    store = store_of(workload, programs, driver, endpoint=endpoint)
    transactions = _transactions_of(workload, programs, driver, store, endpoint=endpoint)
    is_searched = workload.deduplication not in WITH_ENTITIES
    delays = tuple(delay * STEP for delay in workload.timing.looks) if workload.timing else tuple(range(1, workload.looks + 1))
    to = workload.endpoints[0] if endpoint == workload.opened_by else endpoint
    attempts = programs.transactions.MemoryAttempts(driver) if is_searched else transactions
    has_controls = bool(transactions) and (workload.controlled or not is_searched)
    controls = Controls(attempts, delays, to, clock) if has_controls else None
    handlers = CheckedHandlers(workload, driver, programs=programs, endpoint=endpoint)
    run_markers = programs.run_markers.MemoryRunMarkers(plain, endpoint, clock=still)
    if workload.board:
        handlers.board, run_markers = on_board(programs, driver, run_markers, endpoint)
    return Ports(
        endpoint=endpoint,
        store=store,
        fence=store,
        pending=store if is_searched else programs.document_pending.DocumentPending(store, store.documents),
        handlers=handlers,
        admission=_admission_of(workload, programs, driver, endpoint=endpoint),
        effects=_effects_of(workload, programs, driver, store, endpoint=endpoint, has_peers=has_peers),
        transport=programs.transports.MemoryTransport(plain, endpoint, clock=still, rules=rules),
        dead_letters=programs.stores.MemoryDeadLetters(plain, clock=still),
        transactions=transactions,
        controls=controls,
        run_markers=run_markers,
    )


def store_of(workload: Workload, programs: Programs, driver: CheckerDriver, *, endpoint: str) -> Any:
    clock = clock_of(workload, driver)
    if workload.deduplication in {DeduplicationMode.CLAIMS, DeduplicationMode.ELSEWHERE}:
        return programs.stores.MemoryStore(driver, endpoint, clock=clock, blocking=workload.blocking)
    if workload.changes:
        return programs.rings.MemoryRingsStore(driver, endpoint, clock=EventClock())
    if workload.deduplication is DeduplicationMode.RING:
        timed, still = ClockDriver(driver), EventClock()  # its operations see the clock of the store when they happen
        return programs.ring.MemoryRingStore(timed, endpoint, bucketing=BUCKETING, clock=still, blocking=workload.blocking)
    if workload.deduplication is DeduplicationMode.DATABASE:
        return programs.database.MemoryDatabase(driver, endpoint, clock=clock)
    shared = workload.endpoints[0] if endpoint == workload.opened_by else endpoint
    expiring = ExpiringDriver(driver) if workload.timing else driver
    documents = programs.memory_documents.MemoryDocuments(expiring, f"store of {shared}")
    kept = timedelta(milliseconds=workload.timing.kept) if workload.timing else LONG
    history = kept if workload.deduplication is DeduplicationMode.HISTORY else None
    stored = _stored_retention(workload, programs, driver) if history is not None else None
    return programs.documents.DocumentStore(documents, endpoint, clock=clock, history=history, retention=stored)


def _stored_retention(workload: Workload, programs: Programs, driver: CheckerDriver) -> Any:
    """Return the retention that is stored, where an operator changes it. It has a part of the world of its own."""
    timing = workload.timing
    if timing is None or not timing.changes:
        return None
    documents = programs.memory_documents.MemoryDocuments(ExpiringDriver(driver), RETENTION)
    clock = clock_of(workload, driver)
    return programs.retention.StoredRetention(documents, workload.endpoints[0], clock=clock, configured=timing.kept)


def retentions_of(workload: Workload, programs: Programs, driver: CheckerDriver) -> Any:
    """Return what an operator changes the retention by."""
    stored = _stored_retention(workload, programs, driver)
    return programs.retention.DocumentRetentions(stored, clock=clock_of(workload, driver))


def _transactions_of(workload: Workload, programs: Programs, driver: CheckerDriver, store: Any, *, endpoint: str) -> Any:
    if not (workload.clients or workload.strays):
        return None
    if workload.deduplication in WITH_ENTITIES:
        return programs.document_transactions.DocumentTransactions(
            store, retention=workload.timing.kept if workload.timing else 1
        )
    clock, blocking = clock_of(workload, driver), workload.blocking
    if workload.deduplication is DeduplicationMode.DATABASE:
        return programs.database_transactions.MemoryDatabaseTransactions(driver, endpoint, clock=clock)
    return programs.transactions.MemoryTransactions(
        driver, endpoint, clock=clock, blocking=blocking, has_controls=workload.controlled
    )


def place_of(workload: Workload, programs: Programs, endpoint: str) -> WorldPart:
    """Return which part of the world is an endpoint's store."""
    store = store_of(workload, programs, CheckerDriver(None), endpoint=endpoint)
    place: WorldPart = store.documents.place if workload.deduplication in WITH_ENTITIES else store.place
    return place


def tokens_of(workload: Workload, programs: Programs, driver: CheckerDriver) -> Any:
    return programs.tokens.MemoryTokens(driver, clock=clock_of(workload, driver))


def marks_of(workload: Workload, programs: Programs, driver: CheckerDriver) -> Any:
    """Return the dedup store: the one on documents where time passes, because it is the one with a retention."""
    if workload.timing is None:
        return programs.dedup.MemoryMarkStore(driver)
    documents = programs.memory_documents.MemoryDocuments(ExpiringDriver(driver), DEDUP)
    kept = timedelta(milliseconds=workload.timing.kept)
    clock = clock_of(workload, driver)
    stored = _stored_retention(workload, programs, driver)
    return programs.marks.DocumentMarkStore(documents, retention=kept, clock=clock, stored=stored)


def remote_requests_of(workload: Workload, programs: Programs, driver: CheckerDriver, *, endpoint: str) -> Any:
    """Return what an endpoint keeps of what other services ask."""
    clock = clock_of(workload, driver)
    transactions = None
    if workload.deduplication is DeduplicationMode.DATABASE:
        transactions = programs.database_transactions.MemoryDatabaseTransactions(driver, endpoint, clock=clock)
    return programs.remote_requests.MemoryRemoteRequests(driver, endpoint, clock=clock, transactions=transactions)


def first_worlds(workload: Workload, programs: Programs) -> dict[str, Any]:
    """Return what the stores hold at the beginning, and what is beside them, by their places' names."""
    places = [place_of(workload, programs, endpoint) for endpoint in workload.endpoints]
    worlds = {place.name: _first_world(workload, place) for place in places}
    if workload.deduplication is DeduplicationMode.DATABASE:
        worlds = {}
    if workload.deduplication is DeduplicationMode.RING:
        worlds = {place.name: _ring_at_first(workload, programs) for place in places}
    worlds |= _tokens_at_first(workload, programs, places[0].name)
    if workload.deduplication is DeduplicationMode.DEDUP:
        worlds[DEDUP] = ExpiringWorld() if workload.timing else programs.dedup.DedupWorld()
    worlds[STARTS] = programs.run_markers.RunMarkersWorld(explained=workload.supervised)
    if workload.board:
        worlds[BOARD.name] = first_board(programs)
    if workload.clients or workload.asked:
        worlds[ANSWERS] = AnswersWorld()
    worlds |= _others_at_first(workload, programs)
    if workload.asked:
        requests = remote_requests_of(workload, programs, CheckerDriver(None), endpoint=workload.endpoints[0])
        worlds[requests.place.name] = requests.place.empty
    if workload.timing and workload.timing.changes:
        worlds[RETENTION] = ExpiringWorld()
    if workload.artifacts:
        worlds[ARTIFACTS] = programs.artifacts.ArtifactsWorld()
    return _with_time(worlds) if workload.timing else worlds


def _others_at_first(workload: Workload, programs: Programs) -> dict[str, Any]:
    """Return the services that are called."""
    if workload.calls:
        return {THIRD_PARTY: programs.memory_third_party.ThirdPartyWorld()}
    if workload.requests or workload.followed:
        return {REMOTE: programs.remote.RemoteWorld(workload.answered(), workload.answered())}
    return {}


def _ring_at_first(workload: Workload, programs: Programs) -> Any:
    if workload.changes:
        return first_rings(programs, workload.changes)
    return first_ring(programs, *((BEGINNING,) if workload.timing else ()))


def _tokens_at_first(workload: Workload, programs: Programs, store: str) -> dict[str, Any]:
    """Return the part of the world that holds tokens, and the store if processes left something pending in it."""
    live = workload.tokens()
    if workload.deduplication is DeduplicationMode.DATABASE:
        return {store: programs.database.DatabaseWorld(tokens=live)}
    if workload.deduplication not in SWEPT_TOKENS:
        return {}
    if not workload.handled_before:
        return {TOKENS: programs.tokens.TokensWorld(prepared=_strangers(workload), live=live)}
    left, prepared = _left_pending(workload, programs)
    return {store: left, TOKENS: programs.tokens.TokensWorld(prepared=prepared, live=live)}


def _first_world(workload: Workload, place: WorldPart) -> Any:
    empty: Any = place.empty
    if workload.spoiled:
        return replace(empty, written=frozenset({WrittenDocument(SPOILED, 1, workload.spoiled)}))
    return empty


def _with_time(worlds: dict[str, Any]) -> dict[str, Any]:
    """Add a time of expiry to every place for documents, and the clock."""
    documents = {name: ExpiringWorld() for name, world in worlds.items() if hasattr(world, "written")}
    return {**worlds, **documents, CLOCK: ClockWorld()}


def _strangers(workload: Workload) -> frozenset[PreparedToken]:
    """Return tokens that no sweeper removes: those of an endpoint that no longer runs, and one of a spoiled document.

    They are the oldest, so each page begins with them.
    """
    owners = [Owner(NOWHERE, "", Identity(NOWHERE, "0"))] * workload.strangers
    if workload.spoiled:
        owners.append(Owner(workload.endpoints[0], SPOILED, Identity(NOWHERE, "0")))
    return frozenset(PreparedToken(Token(f"{STUCK}{n}", NOWHERE), owner, -1) for n, owner in enumerate(owners))


def _left_pending(workload: Workload, programs: Programs) -> tuple[StoreWorld, frozenset[PreparedToken]]:
    """Return what processes left that committed all arrivals and sent nothing: claims, records and prepared tokens."""
    endpoint, driver = workload.endpoints[0], CheckerDriver(MemoryReceipt(number=0, times=0))
    handlers, ids = CheckedHandlers(workload, driver, programs=programs, endpoint=endpoint), CheckedIdGenerator(driver)
    messages = [each.message for each in workload.sends() if each.message.body.decode() in {a.name for a in workload.arrivals}]
    rows = tuple((each.body.decode(), mark_text(driver.token())) for each in messages)
    records = [
        Record(each.identity, handlers.effects(each.identity, *row), token=each.token, fingerprint=each.fingerprint)
        for each, row in zip(messages, rows, strict=True)
    ]
    issued = [programs.admission.issue(record, {}, ids) for record in records]
    claims = frozenset((each.identity, each.fingerprint) for each in messages)
    store = programs.stores.StoreWorld(claims, tuple(programs.stores.StoredRecord(each, 0) for each in issued), rows)
    return store, frozenset(
        PreparedToken(token, Owner(endpoint, "", each.identity), 0) for each in issued for token in each.issued
    )


def _admission_of(workload: Workload, programs: Programs, driver: CheckerDriver, *, endpoint: str) -> Any:
    subscribers = {DONE: workload.subscribers} if workload.published else {}
    if workload.deduplication is DeduplicationMode.DEDUP:
        return programs.admission.DedupStoreAdmission(endpoint, marks_of(workload, programs, driver))
    if workload.deduplication in SWEPT_TOKENS:
        return programs.admission.TokenAdmission(
            endpoint, tokens_of(workload, programs, driver), subscribers, CheckedIdGenerator(driver)
        )
    if workload.deduplication is DeduplicationMode.DATABASE:
        return programs.admission.TokensInStore(subscribers, CheckedIdGenerator(driver))
    return programs.admission.StoreAdmission()


def _effects_of(
    workload: Workload, programs: Programs, driver: CheckerDriver, store: Any, *, endpoint: str, has_peers: bool
) -> Any:
    if workload.calls:
        return _calling(workload, programs, driver, workload.calls)
    if not workload.makes:
        return programs.effects.NoArtifacts()
    remote = programs.remote.MemoryRemote(driver) if workload.requests or workload.followed else None
    artifacts = {BLOB: programs.artifacts.MemoryArtifacts(driver, BLOB)} if workload.artifacts else {}
    register = _register_of(workload, programs, driver, store, endpoint=endpoint)
    log = CleanupLog(lambda: driver.now + driver.skew, is_uncancelled=workload.uncancelled)
    if programs.has_log:
        register = WatchedRegister(register, log)
        artifacts = {kind: WatchedArtifacts(each, log) for kind, each in artifacts.items()}
        remote = remote and WatchedRequests(remote, log, workload.requests)
    effects = programs.effects.RegisteredEffects(
        store, register, artifacts, ids=CheckedIdGenerator(driver), clock=clock_of(workload, driver)
    )
    asking = effects.with_peers(remote) if remote and has_peers else effects
    return WatchedEffects(asking, log) if programs.has_log else asking


def _calling(workload: Workload, programs: Programs, driver: CheckerDriver, calls: Calls) -> Any:
    """Return the effects of an endpoint that calls a service which is not ours."""
    clock = clock_of(workload, driver)
    service = programs.memory_third_party.MemoryThirdParty(
        driver, now=clock.now, kept=calls.known * STEP, is_searchable=calls.is_searchable
    )

    def read(message: Message) -> ApiCall:
        until = BEGINNING + calls.used * STEP if calls.used else 0
        return ApiCall(url=URL, method="POST", key=message.id, since=0, until=until, body=message.body)

    return programs.third_party.CallingEffects(programs.effects.NoArtifacts(), service, clock=clock, read=read)


def is_swept(prepared: PreparedToken) -> bool:
    """Return whether a sweeper can remove this token."""
    return not prepared.token.id.startswith(STUCK)


def _register_of(workload: Workload, programs: Programs, driver: CheckerDriver, store: Any, *, endpoint: str) -> Any:
    if workload.deduplication in WITH_ENTITIES:
        return programs.register.DocumentRegister(store)
    return programs.stored_rows.MemoryRegister(driver, endpoint, clock=clock_of(workload, driver))


def leaves_garbage(world: Any) -> bool:
    """Return whether a sweeper would find something in this part of the world: prepared tokens, register rows."""
    if hasattr(world, "written"):
        return any(each.body is not None and each.key.startswith(LISTED) for each in world.written)
    return bool(getattr(world, "rows", ())) or any(is_swept(each) for each in getattr(world, "prepared", ()))


def leaves_records(world: Any) -> bool:
    """Return whether a relay would find something in this part of the world."""
    if hasattr(world, "written"):
        return any(each.pending_for for each in world.written)
    return bool(world.records)


def marked(dedup: Any) -> dict[bytes, bytes]:
    """Return the marks of a dedup store, with their fingerprints."""
    if not hasattr(dedup, "written"):
        known = dict(dedup.fingerprints)
        return {key: known.get(key, b"") for key in dedup.keys}
    return {
        bytes.fromhex(each.key.rpartition("/")[2]): bytes.fromhex(_decode_mark(each.body).body)
        for each in dedup.written
        if each.body is not None
    }


_document = lru_cache(maxsize=10_000)(decode_entity)
"""Decodes a document once, however many states it is in. Nothing here changes what it returns."""
_decode_any = msgspec.json.Decoder().decode
_decode_mark = msgspec.json.Decoder(Mark).decode


def listed_since(world: Any) -> list[int]:
    """Return since when there is what a sweeper removes from this part of the world."""
    if hasattr(world, "written"):
        rows = [each.body for each in world.written if each.body is not None and each.key.startswith(LISTED)]
        return [int(_decode_any(body)["at"]) for body in rows]
    return [each.at for name in ("prepared", "rows") for each in getattr(world, name, ())]


def leases_key(endpoint: str) -> str:
    """Return the document with the leases of an endpoint's relays."""
    return f"relay/{endpoint}"


class Views:
    """Shows every endpoint's store as one with claims: a message that will never be handled again is claimed."""

    def __init__(self, workload: Workload, programs: Programs) -> None:
        self._workload = workload
        self._places = {endpoint: place_of(workload, programs, endpoint).name for endpoint in workload.endpoints}
        self._names = identities_of(workload, programs)
        first = workload.caller
        attempts = [Identity(first, attempt) for attempt in (*workload.attempts, *workload.strays)]
        self._attempts = {claim_key(identity.source, identity): identity for identity in attempts}
        self._keys = {key_of(first, client.key).hex(): client.key for client in workload.clients if client.key}
        self._clients = workload.attempts
        self._by_key = {
            endpoint: {claim_key(endpoint, identity): identity for identity in names} for endpoint, names in self._names.items()
        }
        several = [each for each in workload.arrivals if each.name in workload.mismatched()]
        self._mismatched = [(each.name, each.message().identity, workload.entity(each.name)) for each in several]
        self._view = self._view_of(workload.deduplication)

    def stores(self, worlds: Mapping[str, Any]) -> dict[str, StoreWorld]:
        """Show the store of each endpoint; `worlds` are by their places' names."""
        return {endpoint: self._view(worlds, endpoint) for endpoint in self._workload.endpoints}

    def application_rows(self, worlds: Mapping[str, Any], endpoint: str) -> tuple[tuple[str, str], ...]:
        """Return the rows in the document of the application that is next to an endpoint's entities."""
        there = worlds[self._places[endpoint]].application
        return decode_rows(next((each.body for each in there if each.address == ROWS), None))

    def name_of(self, text: str) -> str:
        """Return what a message is, whichever attempt sent it."""
        return name_of(text)

    def opened(self, worlds: Mapping[str, Any]) -> frozenset[str]:
        """Return the attempts of clients that began."""
        opened: frozenset[str] = worlds[ANSWERS].opened if ANSWERS in worlds else frozenset()
        return opened

    def _view_of(self, deduplication: DeduplicationMode) -> Callable[[Mapping[str, Any], str], StoreWorld]:
        plain = dict.fromkeys((DeduplicationMode.CLAIMS, DeduplicationMode.ELSEWHERE), self._store)
        views = {**plain, DeduplicationMode.RING: self._ring, DeduplicationMode.DATABASE: self._database}
        return views.get(deduplication, self._documents)

    def _store(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        store: StoreWorld = worlds[self._places[endpoint]]
        return store

    def _ring(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        """What was handled counts as claimed, also when it is forgotten: what matters is that it is not handled again."""
        world = worlds[self._places[endpoint]]
        if self._workload.changes:
            claims = set(world.stored)
        else:
            claims = {claim for held in world.buckets for claim in held.claims} | {claim for claim, _ in world.arrivals}
        bodies = {name_of(text): fingerprint_of(text) for text, _ in world.notes}
        claims |= {(identity, bodies[name]) for identity, name in self._names[endpoint].items() if name in bodies}
        records = tuple(StoredRecord(each.record, each.at) for each in world.records)
        return StoreWorld(frozenset(claims), records, world.notes, tuple(world.open))

    def _database(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        """A row whose message's token is gone, and a record, are what says that it was handled."""
        world = worlds[self._places[endpoint]]
        notes = tuple((key, value) for owner, key, value in world.notes if owner == endpoint)
        mine = [each for each in world.records if each.endpoint == endpoint]
        records = tuple(StoredRecord(each.record, 0) for each in mine)
        bodies = {name_of(text): fingerprint_of(text) for text, _ in notes}
        names = self._names[endpoint]
        without_row = [each.record.identity for each in mine if names.get(each.record.identity, "") not in bodies]
        claims = frozenset((identity, bodies[name]) for identity, name in names.items() if name in bodies)
        claims |= {(identity, b"") for identity in without_row if identity in names}
        keys = tuple((key.partition("/")[2], kept) for key, kept in world.keys if key.startswith(f"{endpoint}/"))
        return StoreWorld(claims, records, notes, tuple(world.open), keys)

    def _documents(self, worlds: Mapping[str, Any], endpoint: str) -> StoreWorld:
        names = self._by_key[endpoint]
        keys: list[tuple[str, IdempotencyEntry]] = []
        claims: set[tuple[Identity, bytes]] = set()
        notes: list[tuple[str, str]] = []
        records: list[StoredRecord] = []
        over: set[Identity] = set()
        for each in worlds[self._places[endpoint]].written:
            if each.body is None or each.key in {SPOILED, leases_key(endpoint)} or each.key.startswith(LISTED):
                continue
            document = _document(each.key, each.body)
            notes += decode_rows(document.state)
            committed = [(self._keys[name], found.entry(each.key)) for name, found in document.keys.items()]
            keys += committed
            if each.key == document.leads_to:  # nothing else is committed with a key of its own document
                notes += [(self._clients[kept.attempt].name, kept.attempt) for _, kept in committed]
            for key, kept in document.records.items():
                identity = self._attempts.get(bytes.fromhex(key)) or names[bytes.fromhex(key)]
                if identity in self._attempts.values():
                    pending = kept.record(identity, each.key)
                    records += [StoredRecord(pending, 0)] if pending.effects else []
                    over |= set() if pending.effects else {identity}
                    continue
                claims.add((identity, bytes.fromhex(kept.body)))
                record = kept.record(identity, each.key)
                if record.is_pending or self._workload.deduplication is not DeduplicationMode.HISTORY:
                    records.append(StoredRecord(record, 0))
        recorded = {identity for identity, _ in claims}
        bodies = {name_of(text): fingerprint_of(text) for text, _ in notes}
        for identity, name in self._names[endpoint].items():
            if identity not in recorded and self._is_done_elsewhere(worlds, endpoint, identity, name in bodies):
                claims.add((identity, self._marked(worlds, endpoint, identity) or bodies.get(name, b"")))
        claims |= self._claims_on_several_entities(worlds, endpoint, bodies)
        return StoreWorld(frozenset(claims), tuple(records), tuple(notes), (), tuple(keys), frozenset(over))

    def _marked(self, worlds: Mapping[str, Any], endpoint: str, identity: Identity) -> bytes:
        """Return the fingerprint with which a message is marked as done; b"" without one."""
        marks = marked(worlds[DEDUP]) if self._workload.deduplication is DeduplicationMode.DEDUP else {}
        return marks.get(claim_key(endpoint, identity), b"")

    def _claims_on_several_entities(
        self, worlds: Mapping[str, Any], endpoint: str, bodies: Mapping[str, bytes]
    ) -> set[tuple[Identity, bytes]]:
        """Return the claims of messages under one id that are about several entities: a mark is about one of them."""
        if self._workload.deduplication is not DeduplicationMode.DEDUP:
            return set()
        several = [each for each in self._mismatched if each[0] in bodies]
        if len({entity for *_, entity in several}) < 2:  # noqa: PLR2004
            return set()
        return {(identity, bodies[name]) for name, identity, _ in several if self._marked(worlds, endpoint, identity)}

    def _is_done_elsewhere(self, worlds: Mapping[str, Any], endpoint: str, identity: Identity, has_row: bool) -> bool:  # noqa: FBT001
        if self._workload.deduplication is DeduplicationMode.DEDUP:
            return claim_key(endpoint, identity) in marked(worlds[DEDUP])
        return self._workload.deduplication is DeduplicationMode.TOKENS and has_row
