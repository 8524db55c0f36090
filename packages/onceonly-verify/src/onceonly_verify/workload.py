"""What the checked endpoint is given to do: which messages arrive, how their handlers behave, how it is set up."""

from collections.abc import Hashable
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.artifact import Artifact
from onceonly.model.entities import Entities
from onceonly.model.errors import BudgetExceeded, CommitFailed, HandlerAbandoned, HandlerFailed, LockTimeout
from onceonly.model.identity import NAME_BYTES, Identity, claim_key, timed_id
from onceonly.model.message import Delivery, Failure, FailureKind, Headers, Message, Send, Unreadable
from onceonly.model.record import Decision
from onceonly.model.remote import HTTP, REQUEST, RemoteRequest, Response, Verb, requested
from onceonly.model.retry import Retry, RetryDecision, decide_retry
from onceonly.model.ring import INSTANT
from onceonly.model.token import TOKEN, Token
from onceonly.ports.store import Resources
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.programs import Programs

SHOP, BILLING, SINK, NOWHERE = "shop", "billing", "sink", "nowhere"
CALLERS = "callers"
"""Where transactions wait for their beginning."""
CLIENTS = "clients"
"""Where clients' attempts at transactions wait for their beginning."""
WIRE = "wire"
"""Where requests of other services are on their way."""
BLOB = "blob"
BY = " by "
"""Between what a message is and the attempt that sent it."""
SOURCE, KIND = "upstream", "order"
NEVER_TIRED = Retry(immediate=9, delayed=0)
ENTITY = "e"
"""The entity that messages work on where nothing else is said."""


class DeduplicationMode(Enum):
    """How endpoints know what they handled, and in what kind of store."""

    CLAIMS = "claims in the store"
    RING = "claims that are forgotten"
    HISTORY = "records in entities"
    DEDUP = "a dedup store"
    TOKENS = "tokens"
    DATABASE = "tokens in the same database"
    ELSEWHERE = "claims in the store, tokens elsewhere"


WITH_ENTITIES = frozenset({DeduplicationMode.HISTORY, DeduplicationMode.DEDUP, DeduplicationMode.TOKENS})
WITH_TOKENS = frozenset({DeduplicationMode.TOKENS, DeduplicationMode.DATABASE, DeduplicationMode.ELSEWHERE})
SWEPT_TOKENS = frozenset({DeduplicationMode.TOKENS, DeduplicationMode.ELSEWHERE})
"""Where tokens are in a store of their own, in which a sweeper removes those that are never confirmed."""


class End(Enum):
    """How one run of a handler ends."""

    WORKS = "works"
    FAILS = "fails"
    NOT_NOW = "is left for later"
    KILLS = "kills its process"
    REFUSED = "makes the commit refused"
    RUINS = "ruins its unit"
    OUTLASTS = "runs on after its time"
    LOCKED = "does not get a lock in time"
    LOCKED_OUT = "does not get a lock in time, which ends its unit"


BLAMED = frozenset({End.FAILS, End.REFUSED, End.RUINS, End.OUTLASTS})
"""The ends that count as a failure. The death of a process counts for the message whose handler was running."""


class Behaviour(Enum):
    """How a handler may end; every end but the first costs one whim."""

    WORKS = (End.WORKS,)
    UNSTEADY = (End.WORKS, End.FAILS, End.NOT_NOW)
    FAILS = (End.FAILS,)
    KILLS = (End.KILLS,)
    REFUSED = (End.REFUSED,)
    RUINS = (End.RUINS,)
    OUTLASTS = (End.OUTLASTS,)
    LOCKED = (End.WORKS, End.LOCKED)
    LOCKED_OUT = (End.WORKS, End.LOCKED_OUT)


class Arrival(Struct, frozen=True):
    """One copy that waits in the queue at the beginning. `name` is its body: what the message is, whatever its id says."""

    id: str
    name: str
    source: str = SOURCE
    instant: int = 0
    """What its sender's clock showed, where time passes; 0 for nothing. It becomes a part of the id."""
    stated: int | None = None
    """What its header says instead; 0 for nothing."""

    def message(self) -> Message:
        """Give it as its sender made it."""
        stated = self.instant if self.stated is None else self.stated
        extensions = ((INSTANT, str(stated)),) if stated else ()
        name = self.id.encode().rjust(NAME_BYTES, b"\0")
        id_ = timed_id(self.source, self.instant, name) if self.instant else self.id
        return Message(id=id_, source=self.source, type=KIND, body=self.name.encode(), extensions=extensions)

    @property
    def bucket_instant(self) -> int:
        """The instant by which this version or an older one finds its bucket."""
        return self.message().instant or self.message().former_instant


class Client(Struct, frozen=True):
    """One attempt of a client's at a transaction of the first endpoint, from which it wants an answer.

    `name` is what it does: attempts of one name are attempts at the same. `entity` is what it does it to, empty for nothing.
    """

    name: str
    key: str = ""
    request: str = ""
    entity: str = ENTITY


class Workload(Struct, frozen=True, kw_only=True):
    """Copies that wait at the first endpoint, and how each name's handler behaves.

    Each handled message sends `effects` messages to the next endpoint; those of the last endpoint go to `to`. The first of
    those that "a" sends is called "a.0".
    """

    arrivals: tuple[Arrival, ...]
    endpoints: tuple[str, ...] = (SHOP,)
    behaviours: tuple[tuple[str, Behaviour], ...] = ()
    effects: int = 1
    to: str = SINK
    quiet: bool = False
    """That the handlers of the last endpoint send nothing."""
    deduplication: DeduplicationMode = DeduplicationMode.CLAIMS
    handled_before: bool = False
    """That an older version has handled the arrivals, claimed them by their headers, and sent nothing yet."""
    entities: tuple[tuple[str, str], ...] = ()
    """On which entity the handler of which name works, where entities are kept and it is not the one entity of all others."""
    artifacts: int = 0
    """How many artifacts each handled message makes at the first endpoint."""
    requests: int = 0
    """How many requests each handled message makes of another service at the first endpoint; what it sends follows them up."""
    followed: bool = False
    """That the arrivals follow up requests which another service has executed."""
    asked: tuple[str, ...] = ()
    """What other services ask of the first endpoint, such as "ASK a"; see `executing`."""
    transactions: tuple[str, ...] = ()
    """What transactions of the first endpoint commit, whose processes die before they have sent it."""
    told: tuple[str, ...] = ()
    """Those of them that relays are told of."""
    clients: tuple[Client, ...] = ()
    """Attempts that clients may make at any moment, each once, in processes that may die."""
    looks: int = 1
    """How often it is looked how an attempt of theirs ended."""
    retry: Retry = NEVER_TIRED
    supervised: bool = True
    """Whether a supervisor sees which handler was running when a process ends."""
    blocking: bool = True
    prompt: tuple[str, ...] = ()
    """What must be handled when it is first delivered, whatever happens to the others."""
    takes_copies: bool = True
    """Whether the transport takes a copy that carries a count."""
    may_be_given_up: bool = False
    """That a handler that never fails ends as a dead letter: its process died too often."""
    may_be_both: bool = False
    """That a dead letter may be handled all the same, once: a holder whose lease ended early is still alive, a commit lands
    late, or the message comes again because storing the letter was not answered, or not followed by its acknowledgement."""

    def behaviour(self, name: str) -> Behaviour:
        """Tell how the handler of this message behaves."""
        return dict(self.behaviours).get(name, Behaviour.WORKS)

    def target(self, endpoint: str) -> str:
        """Tell where the messages of an endpoint go."""
        following = self.endpoints[self.endpoints.index(endpoint) + 1 :]
        return following[0] if following else self.to

    def effects_of(self, endpoint: str) -> int:
        """Tell how many messages each handled message of an endpoint sends."""
        return 0 if self.quiet and endpoint == self.endpoints[-1] else self.effects

    def entity(self, name: str) -> str:
        """Tell on which entity the handler of this message works; empty for none."""
        return dict(self.entities).get(name, ENTITY) if self.deduplication in WITH_ENTITIES else ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Give what comes before an endpoint's calls in steps: nothing where there is one endpoint only."""
        return tuple(f"{endpoint}: " for endpoint in self.endpoints) if len(self.endpoints) > 1 else ("",)

    def mismatched(self) -> frozenset[str]:
        """Name the arrivals whose sender gave their id to another body too."""
        mine = {(arrival.message().identity, arrival.name) for arrival in self.arrivals}
        return frozenset(name for identity, name in mine if any(i == identity and n != name for i, n in mine))

    def sends(self) -> tuple[Send, ...]:
        """Give all arrivals as they were sent."""
        asked = tuple(Send(message=Arrival(name, name).message(), to=CALLERS) for name in self.transactions)
        clients = tuple(Send(message=Arrival(name, name).message(), to=CLIENTS) for name in self.client_names)
        called = tuple(asking(text) for text in self.asked)
        arriving = tuple(Send(message=self._arriving(arrival), to=self.endpoints[0]) for arrival in self.arrivals)
        return (*arriving, *asked, *clients, *called)

    @property
    def client_names(self) -> tuple[str, ...]:
        """Give each client's attempt a name of its own."""
        return tuple(f"{client.name}, attempt {number}" for number, client in enumerate(self.clients, start=1))

    @property
    def attempts(self) -> dict[str, Client]:
        """Give the clients by the ids of their attempts, which come of the numbers of what sets them going."""
        before = len(self.arrivals) + len(self.transactions)
        return {f"{before + number}.1.1": client for number, client in enumerate(self.clients, start=1)}

    @property
    def unclaimed(self) -> frozenset[str]:
        """Name what is committed without a claim: by transactions, by clients, and for other services."""
        return frozenset(
            (*self.transactions, *(client.name for client in self.clients), *(text.partition(" ")[2] for text in self.asked))
        )

    @property
    def makes(self) -> int:
        """Tell how many artifacts each handled message makes at the first endpoint, before its commit."""
        return self.artifacts + self.requests + self.followed

    def tokens(self) -> frozenset[Token]:
        """Give the tokens that the arrivals came with, live at the beginning."""
        arriving = (self._arriving(arrival).token for arrival in self.arrivals)
        return frozenset(Token(token, self.endpoints[0]) for token in arriving if token)

    def _arriving(self, arrival: Arrival) -> Message:
        token = ((TOKEN, f"token of {arrival.id} of {arrival.source}"),) if self.deduplication in WITH_TOKENS else ()
        request = ((REQUEST, _request_of(arrival)),) if self.followed else ()
        message = arrival.message()
        return replace(message, extensions=(*message.extensions, *token, *request))

    def answered(self) -> frozenset[tuple[str, bytes]]:
        """Give what other services have executed at the beginning."""
        return frozenset((_request_of(each), each.name.encode()) for each in self.arrivals if self.followed)


def _request_of(arrival: Arrival) -> str:
    return f"request of {arrival.id}"


def asking(text: str) -> Send:
    """Give a request of another service on its way here."""
    return Send(message=Message(id=text, source=CALLERS, type=KIND, body=text.encode()), to=WIRE)


def copies(*names: str, instant: int = 0) -> tuple[Arrival, ...]:
    """Give one arrival for each name; equal names are copies of one message."""
    return tuple(Arrival(name, name, instant=instant) for name in names)


class EventClock:
    """A clock that stands still: under the checker, time passes by events."""

    def now(self) -> int:
        """Give the beginning of time."""
        return 0


class CheckedHandlers:
    """Handlers of one endpoint whose every run leaves its own mark in what it commits and in what it sends."""

    def __init__(self, workload: Workload, driver: CheckerDriver, *, programs: Programs, endpoint: str) -> None:
        """Write into the unit's notebook."""
        self.driver = driver
        """What all adapters of this run share."""
        self.workload = workload
        self._programs = programs
        self._endpoint = endpoint
        self._attempts: dict[Identity, int] = {}

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read the CloudEvent."""
        message = _read(delivery.headers, delivery.body, self.workload.entity(name_of(delivery.body.decode())))
        self._attempts[message.identity] = max(delivery.attempts, self._attempts.get(message.identity, 0))
        return message

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Write a row, then end as the checker chooses."""
        text = message.body.decode()
        run = (claim_key(self._endpoint, message.identity), self._attempts[message.identity])
        end = await self.driver.choose(name_of(text), run)
        if end is End.NOT_NOW:
            raise BudgetExceeded
        if end is End.LOCKED_OUT:
            raise LockTimeout("another transaction has the lock, and this one was rolled back")
        mark = mark_text(self.driver.token())
        async with resources.attempt():
            self._write(message, resources, mark)
            if end is End.FAILS:
                raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason="the handler failed"))
            if end is End.LOCKED:
                raise LockTimeout("another transaction has the lock")
            if end is End.RUINS:
                raise CommitFailed("the connection was lost")
            if end is End.OUTLASTS:
                raise HandlerAbandoned(Failure(kind=FailureKind.TIMEOUT, reason="the handler runs on after its time"))
            if end is End.REFUSED:
                notebook: Any = resources.get(self._programs.stores.Notebook)
                notebook.refuse("a deferred constraint")
        self._check(message, response)
        effects = self.effects(message.identity, text, mark)
        if not self._requests:
            return Decision(effects, self._artifacts(text, mark, attempt))
        url = f"{attempt}/0"
        followed = replace(effects[0], message=replace(effects[0].message, extensions=((REQUEST, url),)))
        request = Artifact(kind=HTTP, name=url, data=followed.message.body)
        return Decision((followed, *effects[1:]), (request,), (RemoteRequest(Verb.POST, url),))

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Judge by the workload's policy, at an instant and with a chance that are always the same."""
        return decide_retry(self.workload.retry, failure, attempts=attempts, history=history, now=0, chance=0)

    def effects(self, identity: Identity, text: str, mark: str) -> tuple[Send, ...]:
        """Give what an attempt at this message sends."""
        return tuple(
            self._effect(identity, index, effect_text(name_of(text), index, mark))
            for index in range(self.workload.effects_of(self._endpoint))
        )

    def _write(self, message: Message, resources: Resources, mark: str) -> None:
        """Add a row: to the notebook, or to those that are the state of the entity."""
        text = message.body.decode()
        if message.unit:
            entities: Any = resources.get(Entities)
            entities.write(message.unit, encode_rows((*decode_rows(entities.read(message.unit)), (text, mark))))
        else:
            notebook: Any = resources.get(self._programs.stores.Notebook)
            notebook.write(text, mark)

    @property
    def _requests(self) -> int:
        return self.workload.requests if self._endpoint == self.workload.endpoints[0] else 0

    def _check(self, message: Message, response: Response | None) -> None:
        """Make sure that what follows a request up finds its response. Raises RuntimeError, which nothing expects."""
        if requested(message) and (response is None or response.body != message.body):
            raise RuntimeError(f"{message.body!r} was given the response {response!r}")

    def _artifacts(self, text: str, mark: str, attempt: str) -> tuple[Artifact, ...]:
        count = self.workload.artifacts if self._endpoint == self.workload.endpoints[0] else 0
        return tuple(
            Artifact(kind=BLOB, name=f"{attempt}/{index}", data=effect_text(name_of(text), index, mark).encode())
            for index in range(count)
        )

    def _effect(self, identity: Identity, index: int, text: str) -> Send:
        body = text.encode()
        fresh = self._programs.identity.outgoing_id(self._endpoint, identity, index)
        sent = Message(id=fresh, source=self._endpoint, type="done", body=body)
        return Send(message=sent, to=self.workload.target(self._endpoint))


def encode_rows(rows: tuple[tuple[str, str], ...]) -> bytes:
    """Write rows as an entity's state."""
    return msgspec.json.encode(rows)


def decode_rows(state: bytes | None) -> tuple[tuple[str, str], ...]:
    """Read rows from an entity's state."""
    return msgspec.json.decode(state, type=tuple[tuple[str, str], ...]) if state else ()


def effect_text(name: str, index: int, mark: str) -> str:
    """Write the body of what an attempt sends: what it is, and which attempt sent it."""
    return f"{name}.{index}{BY}{mark}"


def name_of(text: str) -> str:
    """Tell what a message is, whichever attempt sent it."""
    return text.partition(BY)[0]


def names_of(workload: Workload, programs: Programs) -> dict[Identity, str]:
    """Give the names of messages whose id alone says too little, for steps that a person reads."""
    made = {(arrival.message().identity, arrival.name) for arrival in workload.arrivals}
    names = {each.message().identity: each.id for each in workload.arrivals if each.instant}
    names |= {identity: f"{identity.id} of {identity.source}" for identity, _ in made if identity.source != SOURCE}
    for endpoint in workload.endpoints:
        sent = {
            (Identity(endpoint, programs.identity.outgoing_id(endpoint, identity, index)), f"{name}.{index}")
            for identity, name in made
            for index in range(workload.effects)
        }
        names |= dict(sorted(sent, reverse=True))  # two under one id, which takes a mutant: the first name
        made = sent
    return names


def identities_of(workload: Workload, programs: Programs) -> dict[str, dict[Identity, str]]:
    """Give, for each endpoint, the names of all messages that may come to it."""
    made = {arrival.message().identity: arrival.name for arrival in workload.arrivals}
    found = {}
    for endpoint in workload.endpoints:
        found[endpoint] = made
        made = {
            Identity(endpoint, programs.identity.outgoing_id(endpoint, identity, index)): f"{name}.{index}"
            for identity, name in made.items()
            for index in range(workload.effects)
        }
    return found


def mark_text(token: tuple[Hashable, int]) -> str:
    """Write an attempt's name as text without spaces."""
    receipt: Any = token[0]
    return f"{receipt.number}.{receipt.times}.{token[1]}"


@lru_cache(maxsize=10_000)
def _read(headers: Headers, body: bytes, unit: str) -> Message:
    event = take_apart(headers, body)
    message = message_of(event, source=event.attributes["source"], id=event.attributes["id"])
    return replace(message, unit=unit) if unit else message
