"""The settings of an endpoint, all checked at once: what the wiring needs, and the policies its handlers start from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from msgspec import Struct

from onceonly.config.deduplication import (
    ControlMessages,
    Deduplication,
    DeduplicationPlan,
    DedupStore,
    History,
    Tokens,
    is_duration,
    plan_deduplication,
)
from onceonly.config.journal import Journal
from onceonly.config.location import Location, locate, problem_of
from onceonly.config.retention import RetentionPromise, control_problem, default_interval, interval_problem
from onceonly.config.worker import WorkerSettings
from onceonly.formats.identity import IdentityRule, rule_problem
from onceonly.model.address import address_problem
from onceonly.model.endpoint_name import NAME_RULE, is_endpoint_name
from onceonly.model.errors import SetupError
from onceonly.model.headers import names_problem
from onceonly.model.message import MOST_HOPS
from onceonly.model.peer import Peer
from onceonly.model.retry import Retry
from onceonly.model.wording import an
from onceonly.systems import Role

DAY_SECONDS = 86400.0
MAX_COMMIT = timedelta(seconds=30)
MAX_HOPS = 10_000
UNKNOWN_TYPES_WAIT = 300.0
LONGEST_COMMIT = timedelta(hours=1)
MARGIN_SECONDS = 5.0
_NEEDED = frozenset({"store", "transport"})
PREPARATION_SECONDS = 60.0
"""Seconds that a unit may wait for blobs, requests and tokens to be prepared at other services."""


class EndpointLocations(Struct, frozen=True, kw_only=True):
    """Where an endpoint keeps things. `dead_letters` is the store where no other database is named."""

    store: Location
    transport: Location
    dead_letters: Location
    blobs: Location | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One endpoint's settings. Raises SetupError that lists everything that is wrong with them.

    `store` is a URL, an `AsyncEngine` or an `async_sessionmaker`; `transport` is a URL; `dead_letters` names another database
    than the store's. `metadata` is a SQLAlchemy `MetaData` whose tables an embedded database gets at start. `timeout` is in
    seconds, for each handler; `relay_after` is how old, in seconds, a record must be before the relay takes it for left behind.
    `max_hops` is the longest chain of handlers that each send the next message; None: no limit. `carry_headers` are the names
    of headers that handlers pass on from their message to what they send. `unknown_types_wait` is how long, in seconds, a
    message that no handler of a process takes waits for another process.
    `control` is how transactions are finished on a store that cannot be searched.
    `isolation` is the level of its units in a SQL store, such as "SERIALIZABLE"; without it what
    the URL says, or the database's own. `blobs` is the URL of the place where its handlers create blobs, `peers` are the
    services (their URLs, or `Peer`) at which they may have something executed.

    `max_commit` is how long any transaction outside of handlers may take. Within `manual_retry` after it was given up a person
    may still retry a message and be sure that what it was a copy of is known. `janitor=False` leaves all cleaning up to others:
    `onceonly run` elsewhere, or `onceonly janitor`; `janitor_interval` is how often it is due. At `health`, "HOST:PORT",
    `onceonly run` answers how it is. With `presence`, processes report to a SQL store that they run. With `debug` handlers have
    no time limit; `onceonly run --debug` sets it.

    `telemetry` is what makes traces, such as `OpenTelemetry()`. `journal` is how much of what happened to messages is kept.
    """

    name: str
    store: object = field(repr=False)  # may hold a password, as the other URLs
    transport: str = field(repr=False)
    metadata: object = None
    isolation: str | None = None
    deduplication: Deduplication = field(default_factory=History)
    blobs: str | None = field(default=None, repr=False)
    peers: Sequence[Peer | str] = ()
    dead_letters: object = field(default=None, repr=False)
    identity: IdentityRule | None = None
    retry: Retry = field(default_factory=Retry)
    timeout: float = 30.0
    max_hops: int | None = MAX_HOPS
    carry_headers: Sequence[str] = ()
    relay_after: float = 10.0
    unknown_types_wait: float = UNKNOWN_TYPES_WAIT
    max_commit: timedelta = MAX_COMMIT
    manual_retry: timedelta = timedelta()
    janitor: bool = True
    janitor_interval: timedelta | None = None
    presence: bool = True
    health: str | None = None
    control: ControlMessages = field(default_factory=ControlMessages)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    telemetry: object = None
    journal: Journal | None = None
    debug: bool = False

    @property
    def retention(self) -> timedelta | None:
        """For how long something is kept so that a copy is known; None with `Off()`."""
        return self.plan.retention

    @property
    def interval(self) -> timedelta:
        """How long the janitor rests between two rounds."""
        return self.janitor_interval or default_interval(self.retention or timedelta(days=1))

    def longest_silence(self, longest_timeout: float = 0.0, *, at_once: int | None = None) -> float:
        """Tell for how many seconds its transactions in a database may be without a statement, and nothing is wrong.

        A handler ends, or its process does, within time-out and grace; those of other units may hold the event loop meanwhile.
        There are `at_once` units, by default as many as the worker's settings say.
        """
        worker = self.worker
        handling = worker.budget + (at_once or worker.at_once) * (max(self.timeout, longest_timeout) + worker.grace)
        if self.makes_things or (self.plan.tokens is not None and not self.plan.tokens_in_store):
            handling += PREPARATION_SECONDS
        return max(handling, self.max_commit.total_seconds()) + MARGIN_SECONDS

    def __post_init__(self) -> None:
        if problems := tuple(dict.fromkeys(self._problems())):
            lines = "".join(f"\n  * {problem}" for problem in problems)
            raise SetupError(f"endpoint {self.name!r} has invalid settings:{lines}")

    def keeps_documents(self, *, entities: bool) -> bool:
        """Return whether its store is documents: a service's, or memory's where something needs them, such as `entities`."""
        store, plan = self.places.store, self.plan
        if store.is_sql:
            return False
        elsewhere = plan.marks is not None or plan.tokens is not None
        return not store.in_process or entities or elsewhere or self.makes_things or self._only_sends

    def control_problem(self, *, entities: bool) -> str | None:
        """Say why control messages would give up a transaction that may still be committed, where there are any."""
        if not self.plan.records or not self.keeps_documents(entities=entities):
            return None
        return control_problem(self.max_commit, self.control)

    @property
    def _only_sends(self) -> bool:
        return bool(self.control.processed_by)

    @property
    def all_peers(self) -> tuple[Peer, ...]:
        """The services that handlers may ask."""
        return tuple(each if isinstance(each, Peer) else Peer(each) for each in self.peers)

    @property
    def makes_things(self) -> bool:
        """Whether handlers may make anything but messages, so that attempts are registered."""
        return self.blobs is not None or bool(self.peers)

    @cached_property
    def places(self) -> EndpointLocations:
        """Where the endpoint keeps things, each read once. Raises SetupError; not after construction."""
        store = locate(self.store, "store")
        return EndpointLocations(
            store=store,
            transport=locate(self.transport, "transport"),
            dead_letters=store if self.dead_letters is None else locate(self.dead_letters, "dead_letters"),
            blobs=None if self.blobs is None else locate(self.blobs, "blobs"),
        )

    @cached_property
    def plan(self) -> DeduplicationPlan:
        """What the deduplication setting means for the store. Raises SetupError; not after construction."""
        return plan_deduplication(self.deduplication, self.places.store)

    def _problems(self) -> Iterator[str]:
        if not is_endpoint_name(self.name):
            yield NAME_RULE
        given: tuple[tuple[Role, object], ...] = (
            ("store", self.store),
            ("dead_letters", self.dead_letters),
            ("transport", self.transport),
            ("blobs", self.blobs),
        )
        wrong = [
            found for role, setting in given if setting is not None or role in _NEEDED if (found := problem_of(setting, role))
        ]
        yield from wrong
        yield from self._sql_problems()
        undecided = tuple(self._deduplication_problems(located=not wrong))
        yield from undecided
        yield from self._peer_problems()
        if problem := rule_problem(self.identity):
            yield problem
        if isinstance(self.retry, Retry):
            yield from self.retry.problems()
        else:
            yield f"retry must be a Retry(...), not {self.retry!r}"
        if not 0 < self.timeout <= DAY_SECONDS:
            yield f"timeout must be a number of seconds above 0, at most a day, not {self.timeout!r}"
        if self.max_hops is not None and not (type(self.max_hops) is int and 1 <= self.max_hops <= MOST_HOPS):
            yield f"max_hops must be a whole number from 1 to {MOST_HOPS:,}, or None for no limit, not {self.max_hops!r}"
        if problem := names_problem(self.carry_headers):
            yield f"carry_headers: {problem}"
        yield from self._waiting_problems()
        yield from self._control_problems(decided=not (wrong or undecided))
        if not isinstance(self.worker, WorkerSettings):
            yield f"worker must be WorkerSettings(...), not {self.worker!r}"
        if self.telemetry is not None and not callable(getattr(self.telemetry, "instrument", None)):
            kind = an(type(self.telemetry).__name__)
            yield f"telemetry must be OpenTelemetry(...) of onceonly.telemetry, or None, not {kind}"
        yield from self._journal_problems(located=not wrong)
        yield from self._maintenance_problems()
        yield from self.retention_problems()

    def _waiting_problems(self) -> Iterator[str]:
        if not 0 < self.relay_after <= DAY_SECONDS:
            yield f"relay_after must be a number of seconds above 0, at most a day, not {self.relay_after!r}"
        if not _is_seconds(self.unknown_types_wait) or not 0 <= self.unknown_types_wait <= DAY_SECONDS:
            yield (
                "unknown_types_wait must be a number of seconds from 0, to wait for no other process, to a day, "
                f"not {self.unknown_types_wait!r:.100}"
            )

    def retention_problems(self, retry: Retry | None = None, timeout: float | None = None) -> Iterator[str]:
        """Say, with the arithmetic, why what is kept would be forgotten too early for these retries, or the endpoint's own."""
        chosen, timeout = self.deduplication, timeout or self.timeout
        policy: object = retry or self.retry  # what a user wrote, whatever the annotation says
        if not isinstance(chosen, History | DedupStore | Tokens) or not isinstance(policy, Retry) or policy.problems():
            return
        if not (is_duration(self.manual_retry) and is_duration(self.max_commit)) or not 0 < timeout <= DAY_SECONDS:
            return  # told elsewhere
        promised = RetentionPromise(retry=policy, timeout=timeout, manual_retry=self.manual_retry, max_commit=self.max_commit)
        name = type(chosen).__name__
        if isinstance(chosen, Tokens):  # what is handled is known by its token, however late a copy comes
            yield from promised.commit_problems(name, chosen.retention)
            if chosen.url:  # those next to the store need no sweeper
                yield from promised.sweep_problems(chosen.sweep_after)
        else:
            yield from promised.problems(name, chosen.retention)

    def _journal_problems(self, *, located: bool) -> Iterator[str]:
        if self.journal is None:
            return
        if not isinstance(self.journal, Journal):
            yield f"journal must be Journal(...) or None, not {an(type(self.journal).__name__)}"
        elif located and not self.places.store.is_sql:
            yield f"journal needs a SQL store, but the store is {self.places.store}. Remove journal, or use a SQL store"

    def _maintenance_problems(self) -> Iterator[str]:
        if not is_duration(self.max_commit) or not timedelta() < self.max_commit <= LONGEST_COMMIT:
            yield f"max_commit must be a timedelta above 0, at most an hour, not {self.max_commit!r}"
        if not is_duration(self.manual_retry) or self.manual_retry < timedelta():
            yield f"manual_retry must be a timedelta, 0 or longer, not {self.manual_retry!r}"
        if not isinstance(self.janitor, bool):
            yield f"janitor must be True or False, not {self.janitor!r}"
        if not isinstance(self.presence, bool):
            yield f"presence must be True or False, not {self.presence!r}"
        interval, retention = self.janitor_interval, getattr(self.deduplication, "retention", None)
        if interval is not None and (not is_duration(interval) or interval <= timedelta()):
            yield f"janitor_interval must be a timedelta longer than 0, not {interval!r}"
        elif interval is not None and is_duration(retention) and (problem := interval_problem(interval, retention)):
            yield problem
        if self.health is not None and (problem := address_problem(self.health)):
            yield f"health: {problem}"

    def _deduplication_problems(self, *, located: bool) -> Iterator[str]:
        chosen = self.deduplication
        if not isinstance(chosen, Deduplication):
            yield f"deduplication must be History(...), DedupStore(url), Tokens(url) or Off(), not {an(type(chosen).__name__)}"
            return
        if not located:
            return
        try:
            _ = self.plan  # decided here once, and kept
        except SetupError as error:
            yield str(error)

    def _control_problems(self, *, decided: bool) -> Iterator[str]:
        if not isinstance(self.control, ControlMessages):
            yield f"control must be ControlMessages(...), not {self.control!r}"
        elif not decided:
            return
        elif self.control.processed_by and not self.plan.records:
            yield (
                "control: processed_by cannot be used with deduplication=Off(), which stores no "
                "transactions: remove processed_by, or use History()"
            )
        elif self.control.processed_by and self.places.store.is_sql:
            yield (
                "control: processed_by is for stores that cannot be searched. In a SQL store the relay of "
                "this endpoint finds the records: remove processed_by, and run the endpoint"
            )
        elif self.control.processed_by and self.plan.tokens is not None:
            yield (
                f"control: processed_by={self.control.processed_by!r} cannot be used with Tokens(...): only a "
                "worker of this endpoint can clean up its tokens. Remove processed_by, and run the endpoint"
            )
        elif is_duration(self.max_commit) and (problem := self.control_problem(entities=False)):
            yield problem

    def _peer_problems(self) -> Iterator[str]:
        if isinstance(self.peers, str) or not isinstance(self.peers, Sequence):
            yield f'peers must be a list, such as ["https://payments.example/onceonly"], not {type(self.peers).__name__}'
            return
        try:
            urls = [peer.url for peer in self.all_peers]
        except SetupError as error:
            yield f"peers: {error}"
            return
        if len(set(urls)) < len(urls):
            yield "peers: a URL is listed twice. Remove one of them"

    def _sql_problems(self) -> Iterator[str]:
        if self.metadata is not None and not hasattr(self.metadata, "create_all"):
            yield f"metadata must be a SQLAlchemy MetaData, such as Base.metadata, not {type(self.metadata).__name__}"
        if self.isolation is not None and not isinstance(self.isolation, str):
            yield f'isolation must be a level such as "SERIALIZABLE", not {self.isolation!r}'


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
