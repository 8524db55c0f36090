"""What the checked endpoint is given to do: which messages arrive, how their handlers behave, how it is set up."""

from enum import Enum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onceonly.algorithms.control import CONTROL
from onceonly.documents.store import ATTEMPT
from onceonly.formats.cloudevents import PREFIX
from onceonly.model.identity import NAME_BYTES, timed_id
from onceonly.model.message import Failure, FailureKind, Message, Send
from onceonly.model.remote import REQUEST
from onceonly.model.retry import BLAMED as SUSPECTED
from onceonly.model.retry import Retry
from onceonly.model.third_party import CALL
from onceonly.model.token import TOKEN, Token
from onceonly.model.transaction import Control
from onceonly_verify.memory_ports.third_party import URL
from onceonly_verify.time_steps import Timing

SHOP, BILLING, SHIPPING, SINK, ARCHIVE, NOWHERE = "shop", "billing", "shipping", "sink", "archive", "nowhere"
SINKS = frozenset({SINK, ARCHIVE})
"""The queues that take every message at once."""
HOST_DEAD = "given up by the host"
"""Where messages end that a host gives up on its own."""
CALLERS = "callers"
"""Where transactions wait for their beginning."""
CLIENTS = "clients"
"""Where clients' attempts at transactions wait for their beginning."""
FENCERS = "fencers"
"""Where messages wait that fencers give up."""
WIRE = "wire"
"""Where requests of other services are on their way."""
BLOB = "blob"
USERS = (("tenant", "x"), ("region", "y"))
"""Attributes of the user's."""
SOURCE, KIND, DONE, UNDECLARED = "upstream", "order", "done", "undeclared"
GARBLED = "garbled"
"""The extension attribute of a message whose body cannot be read."""
MOST_ATTEMPTS = 15
"""The most attempts of one client that retries. A check reports an endless history earlier."""
UNREADABLE, OF_NOBODY, OF_SPOILED = "unreadable", "of nobody", "of a spoiled document"
SPOILED = "entity/spoiled"
"""The document that this version cannot read."""
STRAYS = {
    UNREADABLE: b"unreadable",
    OF_NOBODY: b"",
    OF_SPOILED: msgspec.json.encode(Control(endpoint=SHOP, attempt=OF_SPOILED, unit=SPOILED)),
}
"""The bodies of stray control messages that become dead letters; empty for one of an attempt that never existed."""
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
    SPOILS = "fails as if its unit had, within its savepoint"
    MISNAMES = "names an artifact of another attempt"
    OUTLASTS = "runs on after its time"
    LOCKED = "does not get a lock in time"
    LOCKED_OUT = "does not get a lock in time, which ends its unit"
    UNDECLARED = "publishes an event without declared subscribers"
    LATER = "asks to be retried later"
    LOSES = "loses a race"
    OUTRUN = "finds its entity changed"
    NEWER = "finds what a newer version wrote"
    UNABLE = "finds that the store cannot write"
    HOPELESS = "makes a commit impossible"
    SENDS_NOTHING = "works and sends nothing"
    SENDS_ELSEWHERE = "works and sends its last message elsewhere"
    SAVEPOINT = "works again after it has rolled back a savepoint"
    KEY_IN_SAVEPOINT = "takes its key in a savepoint, rolls it back, and takes it again"


VARIED = frozenset({End.SENDS_NOTHING, End.SENDS_ELSEWHERE})
"""The ends of handlers that work and decide differently. The mark of such an attempt ends with the name of its end."""
BLAMED = frozenset(
    {End.FAILS, End.REFUSED, End.RUINS, End.SPOILS, End.MISNAMES, End.OUTLASTS, End.UNDECLARED, End.UNABLE, End.HOPELESS}
)
"""The ends that count as a failure. The death of a process counts for the message whose handler was running."""


class Behaviour(Enum):
    """How a handler may end; every end but the first costs one whim."""

    WORKS = (End.WORKS,)
    UNSTEADY = (End.WORKS, End.FAILS, End.NOT_NOW)
    FAILS = (End.FAILS,)
    KILLS = (End.KILLS,)
    REFUSED = (End.REFUSED,)
    RUINS = (End.RUINS,)
    SPOILS = (End.SPOILS,)
    MISNAMES = (End.MISNAMES,)
    OUTLASTS = (End.OUTLASTS,)
    LOCKED = (End.WORKS, End.LOCKED)
    LOCKED_OUT = (End.WORKS, End.LOCKED_OUT)
    UNDECLARED = (End.UNDECLARED,)
    HOPELESS = (End.HOPELESS,)
    ANY = (
        End.WORKS,
        End.FAILS,
        End.NOT_NOW,
        End.RUINS,
        End.OUTLASTS,
        End.LOCKED,
        End.LOCKED_OUT,
        End.LATER,
        End.LOSES,
        End.OUTRUN,
        End.NEWER,
        End.UNABLE,
        End.SPOILS,
    )
    VARIES = (End.WORKS, End.SENDS_NOTHING, End.SENDS_ELSEWHERE)
    OWNS = (End.WORKS, End.FAILS, End.SAVEPOINT, End.KEY_IN_SAVEPOINT)


class Batched(Enum):
    """How a handler that takes all new messages of a unit at once ends when one of them fails."""

    FAILS = "fails as a whole"
    SETS_ASIDE = "says which of them have failed"


class Flaw(Enum):
    """What is wrong with an arrival that no handler may ever get: the reason of its dead letter, or a part of it."""

    UNREADABLE = "its body cannot be read"
    UNNAMED = "it has no id"
    UNENTITLED = "it has no token"
    WITHOUT_PEERS = "the endpoint has no peers"
    WITHOUT_RESPONSE = "response lost"
    WITHOUT_UNIT = "is not valid UTF-8"


HOPELESS = frozenset({Flaw.WITHOUT_PEERS, Flaw.WITHOUT_RESPONSE, Flaw.WITHOUT_UNIT})
"""The flaws that only a unit shows. Such a message is given up like one whose handler failed."""
FLAWS = frozenset(flaw.value for flaw in Flaw if flaw not in HOPELESS)
"""The reasons of dead letters that are stored without a look at the store."""
INVALID = "\ud800"
"""An entity that no document can have: it is not valid UTF-8."""


class MessageArrival(Struct, frozen=True):
    """One copy that waits in the queue at the beginning. `name` is its body: what the message is, whatever its id says."""

    id: str
    name: str
    source: str = SOURCE
    time: str = ""
    """The attribute `time`. It does not belong to the identity."""
    flaw: Flaw | None = None
    instant: int = 0
    """What its sender's clock showed, where time passes; 0 for nothing. It becomes a part of the id."""
    held: int = 0
    """How often it was only held, according to its copy, when a process died."""
    alone: bool = False
    """Whether it must run alone."""
    suspect: bool = False
    """Whether its first delivery comes from a process that died."""
    failed: int = 0
    """How often it failed before it arrived, as its headers say."""
    blamed: bool = False
    """Whether its last unit failed, perhaps because of it, and was committed without its handler."""

    def message(self) -> Message:
        """Return it as its sender made it."""
        name = self.id.encode().rjust(NAME_BYTES, b"\0")
        id_ = timed_id(self.source, self.instant, name) if self.instant else self.id
        extensions = ((GARBLED, "1"),) if self.flaw is Flaw.UNREADABLE else ()
        return Message(id=id_, source=self.source, type=KIND, body=self.name.encode(), time=self.time, extensions=extensions)


class Client(Struct, frozen=True):
    """One attempt of a client's at a transaction of the first endpoint, from which it wants an answer.

    `name` is what it does: attempts of one name are attempts at the same. `entity` is what it does it to, empty for nothing.
    """

    name: str
    key: str = ""
    request: str = ""
    entity: str = ENTITY
    effects: bool = True
    """Whether it sends what the workload says, or nothing."""


class RingChanges(Struct, frozen=True, kw_only=True):
    """How the retention of claims in rings changes, in slices of a ring with the shortest one.

    An operator sets those in `after`, one after another and each at any moment. The clock moves by `steps` slices.
    With `is_shared`, other endpoints share the ring that is left. With `labels_later`, a bucket is emptied and labelled by two
    database transactions, as in MariaDB, and the janitor dies in between.
    """

    before: int
    after: tuple[int, ...]
    steps: int
    is_shared: bool = False
    labels_later: bool = False


class Supervision(Enum):
    """Who ends a process that crashes: itself, or its supervisor on purpose, as at a stop that takes too long."""

    SEES = "the supervisor sees every death"
    KILLS = "the supervisor kills processes itself"


class Calls(Struct, frozen=True):
    """Calls of a service that is not ours, whose times are in steps of the clock; 0 for no end.

    A key is used for `used` steps after the beginning, and known to the service for `known` steps after its first use. With
    `is_searchable` the service can be asked what it has executed.
    """

    used: int = 0
    known: int = 0
    is_searchable: bool = False


class Workload(Struct, frozen=True):
    """Copies that wait at the first endpoint, and how each name's handler behaves.

    Each handled message sends `effects` messages to the next endpoint; those of the last endpoint go to `to`. The first of
    those that "a" sends is called "a.0". With `published`, they are events of the first endpoint to which all others subscribe.
    """

    arrivals: tuple[MessageArrival, ...] = ()
    endpoints: tuple[str, ...] = (SHOP,)
    behaviours: tuple[tuple[str, Behaviour], ...] = ()
    effects: int = 1
    to: str = SINK
    refused: tuple[int, ...] = ()
    """The numbers of those messages of the last endpoint that go to endpoints that do not exist, each to another one."""
    published: bool = False
    quiet: bool = False
    """That the handlers of the last endpoint send nothing."""
    prefix: str = PREFIX
    """How the names of attributes begin in the headers of what workers receive."""
    handed_on: bool = False
    """Whether arrivals have attributes of the user's, and handlers copy the attributes of their message to what they send."""
    deduplication: DeduplicationMode = DeduplicationMode.CLAIMS
    batched: Batched | None = None
    """How handlers end that take batches; None for handlers that take one message each."""
    handled_before: bool = False
    """That processes which died have handled the arrivals, and sent nothing yet."""
    entities: tuple[tuple[str, str], ...] = ()
    """On which entity the handler of which name works, where entities are kept and it is not the one entity of all others."""
    application: bool = False
    """Whether handlers also add their rows to a document of the application, which all entities of the endpoint have."""
    artifacts: int = 0
    """How many artifacts each handled message makes at the first endpoint."""
    requests: int = 0
    """How many requests each handled message makes of another service at the first endpoint; what it sends follows them up."""
    followed: bool = False
    """That the arrivals follow up requests which another service has executed."""
    calls: "Calls | None" = None
    """How a service that is not ours is called; None where it is not. The arrivals are the calls."""
    lost: bool = False
    """That the other service has lost what it executed: what follows it up can never be handled."""
    asked: tuple[str, ...] = ()
    """What other services ask of the first endpoint, such as "ASK a"; see `actors.executors`."""
    transactions: tuple[str, ...] = ()
    """What transactions of the first endpoint commit, whose processes die before they have sent it."""
    told: tuple[str, ...] = ()
    """Those of them that relays are told of."""
    clients: tuple[Client, ...] = ()
    """Attempts that clients may make at any moment, each once, in processes that may die."""
    clients_retry: bool = False
    """Whether a client sends its request again until it has an answer. Each of its attempts has an id of its own."""
    clients_wait: bool = False
    """Whether a client that retries takes an answer only once its messages are sent, as a host does that acknowledges then."""
    clients_own: bool = False
    """Whether the transactions are the clients' own: the key is taken in them, and they commit or roll back."""
    hosted: bool = False
    """Whether a host receives and acknowledges for all endpoints, and hands the messages over."""
    hosted_again: bool = False
    """Whether that host hands a message that is not settled to the same process once more before it returns it."""
    hosted_most: int = 0
    """After how many deliveries the host gives a message up on its own; 0 for never."""
    patient: bool = False
    """Whether workers release later what they could not acknowledge or release, as the runtime does."""
    fences: int = 0
    """How many workers may fence the document of the arrivals' entity at any moment, each once: they give up other messages."""
    uncancelled: bool = False
    """That no attempt is cancelled while it begins: no sweeper comes early, and no message has two attempts at once."""
    opened_by: str = ""
    """The endpoint that opens the transactions, if the first endpoint only processes their control messages."""
    controlled: bool = False
    """Whether control messages finish the clients' transactions in a store that a relay can search as well."""
    strays: tuple[str, ...] = ()
    """Control messages in the queue at the beginning that no transaction sent; see `STRAYS`."""
    looks: int = 1
    """How often it is looked how an attempt of theirs ended."""
    timing: Timing | None = None
    """How time passes; None where it stands still."""
    changes: RingChanges | None = None
    """What an operator does to the retention of claims in a ring; None where it stays."""
    leases: bool = False
    """Whether relays lease what they take, and come before or after the end of all leases. On documents only."""
    page: int = 10
    """How many records or tokens a relay or sweeper reads at once."""
    strangers: int = 0
    """How many old prepared tokens of an endpoint that no longer runs the token store contains."""
    spoiled: bytes = b""
    """The document of another old prepared token's owner, which this version cannot read."""
    retry: Retry = NEVER_TIRED
    supervised: bool = True
    """Whether a supervisor sees which handler was running when a process ends."""
    board: Supervision | None = None
    """Who ends processes that crash, where supervisor and processes share their counters; None where nothing is shared.

    A handler that kills its process does so by itself in any case.
    """
    blocking: bool = True
    alone: bool = False
    """That one worker is at work alone and nothing fails: no report counts a conflict, and no row is left to a sweeper."""
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
        """Return how the handler of this message behaves."""
        return dict(self.behaviours).get(name, Behaviour.WORKS)

    def targets(self, endpoint: str) -> tuple[str, ...]:
        """Return where the messages of an endpoint go: all of them, but those that the broker refuses."""
        following = self.endpoints[self.endpoints.index(endpoint) + 1 :] if endpoint in self.endpoints else ()
        if self.published:
            return following if endpoint == self.endpoints[0] else (self.to,)
        return following[:1] or (self.to,)

    def depth(self, endpoint: str) -> int:
        """Return how many endpoints a message has passed before it comes to this one."""
        index = self.endpoints.index(endpoint)
        return min(index, 1) if self.published else index

    @property
    def subscribers(self) -> tuple[str, ...]:
        """Return the endpoints that subscribe to what the first one publishes."""
        return self.endpoints[1:] if self.published else ()

    @property
    def caller(self) -> str:
        """Return the endpoint that opens the clients' transactions."""
        return self.opened_by or self.endpoints[0]

    def effects_of(self, endpoint: str) -> int:
        """Return how many messages each handled message of an endpoint sends."""
        return 0 if self.quiet and not set(self.targets(endpoint)) & set(self.endpoints) else self.effects

    def decided(self, endpoint: str, mark: str) -> tuple[str, ...]:
        """Return where an attempt of this mark sends its messages, one after another; an event has no target."""
        target = "" if self.published and endpoint == self.endpoints[0] else self.targets(endpoint)[0]
        count = 0 if mark.endswith(End.SENDS_NOTHING.name) else self.effects_of(endpoint)
        nowhere = {index: NOWHERE if number == 0 else f"{NOWHERE} {number}" for number, index in enumerate(self.refused)}
        targets = [target if target in self.endpoints else nowhere.get(index, target) for index in range(count)]
        return (*targets[:-1], ARCHIVE) if mark.endswith(End.SENDS_ELSEWHERE.name) else tuple(targets)

    def entity(self, name: str) -> str:
        """Return on which entity the handler of this message works; empty for none."""
        return dict(self.entities).get(name, ENTITY) if self.deduplication in WITH_ENTITIES else ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return what comes before an endpoint's calls in steps: nothing where there is one endpoint only."""
        return tuple(f"{endpoint}: " for endpoint in self.endpoints) if len(self.endpoints) > 1 else ("",)

    def mismatched(self) -> frozenset[str]:
        """Name the arrivals whose sender gave their id to another body too."""
        mine = {(arrival.message().identity, arrival.name) for arrival in self.arrivals}
        return frozenset(name for identity, name in mine if any(i == identity and n != name for i, n in mine))

    def sends(self) -> tuple[Send, ...]:
        """Return all arrivals as they were sent."""
        asked = tuple(Send(message=MessageArrival(name, name).message(), to=CALLERS) for name in self.transactions)
        clients = tuple(Send(message=MessageArrival(name, name).message(), to=CLIENTS) for name in self.client_names)
        called = tuple(request_send(text) for text in self.asked)
        fences = tuple(Send(message=MessageArrival(name, name).message(), to=FENCERS) for name in self.fencing)
        strays = tuple(Send(message=stray(name, self.endpoints[0]), to=self.endpoints[0]) for name in self.strays)
        arriving = tuple(self._sent(arrival) for arrival in self.arrivals)
        return (*arriving, *asked, *clients, *called, *fences, *strays)

    @property
    def fencing(self) -> tuple[str, ...]:
        """Name the messages that fencers give up."""
        return tuple(f"given up {number}" for number in range(1, self.fences + 1))

    @property
    def client_names(self) -> tuple[str, ...]:
        """Return a name for each client's attempt."""
        return tuple(f"{client.name}, attempt {number}" for number, client in enumerate(self.clients, start=1))

    @property
    def attempts(self) -> dict[str, Client]:
        """Return the clients by the ids of their attempts, which come of the numbers of what sets them going."""
        before, most = (
            len(self.arrivals) + len(self.transactions),
            MOST_ATTEMPTS if self.clients_retry or self.clients_own else 1,
        )
        numbered = list(enumerate(self.clients, start=before + 1))
        return {f"{number}.{times}.1": client for number, client in numbered for times in range(1, most + 1)}

    @property
    def unclaimed(self) -> frozenset[str]:
        """Name what is committed without a claim: by transactions, by clients, and for other services."""
        return frozenset(
            (*self.transactions, *(client.name for client in self.clients), *(text.partition(" ")[2] for text in self.asked))
        )

    @property
    def makes(self) -> int:
        """Return how many artifacts each handled message makes at the first endpoint, before its commit."""
        return self.artifacts + self.requests + self.followed

    def tokens(self) -> frozenset[Token]:
        """Return the tokens that the arrivals came with, live at the beginning."""
        arriving = (self._arriving(arrival).token for arrival in self.arrivals)
        return frozenset(Token(token, self.endpoints[0]) for token in arriving if token)

    def failed_before(self, name: str) -> int:
        """Return how often an arrival failed before. A lost response and an unknown outcome count as well."""
        return max((each.failed for each in self.arrivals if each.name == name), default=0) + self.lost + self.may_end_unknown

    @property
    def may_end_unknown(self) -> bool:
        """Whether a call may be given up because the service may have forgotten its key."""
        return self.calls is not None and bool(self.calls.used) and not self.calls.is_searchable

    def _sent(self, arrival: MessageArrival) -> Send:
        before = tuple(Failure(kind=FailureKind.EXCEPTION, reason=f"failure {n}") for n in range(arrival.failed))
        if arrival.blamed:
            before += (Failure(kind=FailureKind.LATER, reason=f"{SUSPECTED}: it failed"),)
        return Send(
            message=self._arriving(arrival),
            to=self.endpoints[0],
            attempts=arrival.failed,
            history=before,
            held=arrival.held,
            alone=arrival.alone,
        )

    def _arriving(self, arrival: MessageArrival) -> Message:
        has_token = self.deduplication in WITH_TOKENS and arrival.flaw is not Flaw.UNENTITLED
        token = ((TOKEN, f"token of {arrival.id} of {arrival.source}"),) if has_token else ()
        users = USERS if self.handed_on else ()
        is_following = self.followed or arrival.flaw is Flaw.WITHOUT_PEERS
        request = ((REQUEST, _request_of(arrival)),) if is_following else ()
        message = arrival.message()
        call = ((CALL, URL),) if self.calls else ()
        return replace(message, extensions=(*message.extensions, *users, *token, *request, *call))

    def answered(self) -> frozenset[tuple[str, bytes]]:
        """Return what other services have executed at the beginning, and still know."""
        known = [each for each in self.arrivals if self.followed and each.flaw is not Flaw.WITHOUT_RESPONSE and not self.lost]
        return frozenset((_request_of(each), each.name.encode()) for each in known)


def _request_of(arrival: MessageArrival) -> str:
    return f"request of {arrival.id}"


def request_send(text: str) -> Send:
    """Return a request of another service on its way here."""
    return Send(message=Message(id=text, source=CALLERS, type=KIND, body=text.encode()), to=WIRE)


def copies(*names: str, instant: int = 0) -> tuple[MessageArrival, ...]:
    """Return one arrival for each name; equal names are copies of one message."""
    return tuple(MessageArrival(name, name, instant=instant) for name in names)


def stray(name: str, endpoint: str) -> Message:
    """Return a control message that no transaction sent."""
    body = STRAYS[name] or msgspec.json.encode(Control(endpoint=endpoint, attempt=name, unit=f"{ATTEMPT}{endpoint}/{name}"))
    return Message(id=name, source=endpoint, type=CONTROL, body=body)


def unreadable(workload: Workload) -> frozenset[str]:
    """Return the bodies of stray control messages that cannot be decoded: each becomes a dead letter."""
    return frozenset(STRAYS[name].decode() for name in workload.strays if STRAYS[name])
