"""The settings of an endpoint, all checked at once: what the wiring needs, and the policies its handlers start from.

They are listed once: `takes` makes a method take the arguments of a class.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from onceonly.config.deduplication import (
    ControlMessages,
    Deduplication,
    DeduplicationPlan,
    DedupStore,
    History,
    Shadow,
    Tokens,
    is_duration,
    plan_deduplication,
    without_records,
)
from onceonly.config.destinations import DestinationPolicy, EventRule, event_rule_problems, host_queue_problems
from onceonly.config.location import NO_TRANSPORT, Location, locate, problem_of
from onceonly.config.overlaps import UsedPlace, overlap_problems
from onceonly.config.retention import Journal, RetentionPromise, control_problem, default_interval, interval_problem
from onceonly.config.store_plan import StorePlan, plan_store
from onceonly.config.worker import WorkerSettings
from onceonly.formats.identity import IdentityRule, rule_problem
from onceonly.model.destination import Destination
from onceonly.model.errors import SetupError
from onceonly.model.headers import names_problem
from onceonly.model.limits import NAME_RULE, is_endpoint_name
from onceonly.model.message import MOST_HOPS
from onceonly.model.projection import is_projection_name
from onceonly.model.remote import Peer
from onceonly.model.retry import Retry
from onceonly.model.wording import an
from onceonly.ports.projections import Projection
from onceonly.ports.transport import DestinationRule
from onceonly.systems import Family, Role
from onceonly.systems.carriers import uses_carriers
from onceonly.systems.urls import address_problem

if TYPE_CHECKING:
    from onceonly.formats.message_formats import MessageFormat

Lifespan = Callable[[Any], AbstractAsyncContextManager[object]]
"""A factory of the context manager that is entered before an endpoint starts, and left after it stopped.

It is called with the `Endpoint`."""
DAY_SECONDS = 86400.0
MAX_HOPS = 10_000
LONGEST_COMMIT = timedelta(hours=1)
MARGIN_SECONDS = 5.0
_NEEDED = frozenset({"store"})
PREPARATION_SECONDS = 60.0
_CONTROL = ControlMessages()
"""Seconds that a unit may wait for blobs, requests and tokens to be prepared at other services."""


class EndpointLocations(Struct, frozen=True, kw_only=True):
    """Where an endpoint keeps things. `dead_letters` is the store where no other database is named.

    `projections` are those that a URL names, by their names.
    """

    store: Location
    transport: Location
    dead_letters: Location
    blobs: Location | None = None
    projections: Mapping[str, Location] = {}


@dataclass(frozen=True)
class Settings:
    """One endpoint's settings: the arguments of `Endpoint`, which says what each of them means.

    Raises SetupError that lists everything that is wrong with them.
    """

    name: str
    _: KW_ONLY
    store: object = field(repr=False)  # may hold a password, as the other URLs
    transport: str | None = field(default=None, repr=False)
    metadata: object = None
    isolation: str | None = None
    deduplication: Deduplication = History()  # noqa: RUF009 - immutable, as the others
    blobs: str | None = field(default=None, repr=False)
    peers: Sequence[Peer | str] = ()
    projections: Mapping[str, str | Projection] | None = field(default=None, repr=False)
    identity: IdentityRule | None = None
    format: "MessageFormat | None" = None
    retry: Retry = Retry()  # noqa: RUF009
    timeout: float = 30.0
    max_hops: int | None = MAX_HOPS
    carry_headers: Sequence[str] = ()
    events: EventRule | None = None
    receives_from: Destination | None = None
    relay_after: float = 10.0
    unknown_types_wait: float = 300.0
    max_commit: timedelta = timedelta(seconds=30)
    manual_retry: timedelta = timedelta()
    janitor: bool = True
    janitor_interval: timedelta | None = None
    presence: bool = True
    health: str | None = None
    control: ControlMessages | None = None
    lifespan: Lifespan | None = None
    dead_letters: object = field(default=None, repr=False)
    worker: WorkerSettings = WorkerSettings()  # noqa: RUF009
    telemetry: object = None
    journal: Journal | None = None
    debug: bool = field(default=False, init=False)
    """Whether handlers have no time limit; see `for_debugger`. Not an argument."""

    destinations_of_test: DestinationPolicy | None = field(default=None, init=False)
    """Which destinations messages may have in a test, whose queue is in memory; see `with_destinations_of`. Not an argument."""

    def with_destinations_of(self, other: "Settings") -> "Settings":
        """Return these settings with the destinations that messages may have by others, with their transport."""
        copied = copy(self)
        object.__setattr__(copied, "destinations_of_test", other.destinations(other.known_destinations))
        return copied

    def for_debugger(self) -> "Settings":
        """Return the settings of `onceonly run --debug`, with which handlers have no time limit."""
        copied = copy(self)
        object.__setattr__(copied, "debug", True)
        return copied

    @property
    def has_transport(self) -> bool:
        """Whether it can send. Without one, a host hands its messages over, and it sends none."""
        return self.transport is not None

    @property
    def sends(self) -> bool:
        """Whether it has a transport, or uses carriers, so that a relay has something to do."""
        return self.has_transport or uses_carriers(self.name)

    @property
    def has_queue(self) -> bool:
        """Whether its transport has queues. One that only sends has none: a host hands its messages over."""
        traits = self.places.transport.traits
        return self.has_transport and (traits is None or traits.has_queues)

    @property
    def required_transport(self) -> str:
        """The transport. Raises SetupError if there is none."""
        if self.transport is None:
            raise SetupError(
                f'endpoint {self.name!r} has no transport: set transport="..." to receive from a queue and to send, '
                "or hand its messages over with hosted()"
            )
        return self.transport

    @property
    def retention(self) -> timedelta | None:
        """For how long something is kept so that a copy is known; None with `Off()`."""
        return self.plan.retention

    @property
    def interval(self) -> timedelta:
        """How long the janitor rests between two rounds."""
        return self.janitor_interval or default_interval(self.retention or timedelta(days=1))

    def longest_silence(self, longest_timeout: float = 0.0, *, at_once: int | None = None) -> float:
        """Return for how many seconds its transactions in a database may be without a statement, and nothing is wrong.

        A handler ends, or its process does, within time-out and grace; those of other units may hold the event loop meanwhile.
        There are `at_once` units, by default as many as the worker's settings say.
        """
        worker = self.worker
        handling = worker.budget + (at_once or worker.at_once) * (max(self.timeout, longest_timeout) + worker.grace)
        if self.makes_artifacts or (self.plan.tokens is not None and not self.plan.tokens_in_store):
            handling += PREPARATION_SECONDS
        return max(handling, self.max_commit.total_seconds()) + MARGIN_SECONDS

    def __post_init__(self) -> None:
        if problems := tuple(dict.fromkeys(self._problems())):
            lines = "".join(f"\n  * {problem}" for problem in problems)
            raise SetupError(f"endpoint {self.name!r} has invalid settings:{lines}")

    @cached_property
    def store_plan(self) -> StorePlan:
        """What the store setting means where no handler works on entities. Raises SetupError; not after construction."""
        return plan_store(self.places.store, self.plan, makes_artifacts=self.makes_artifacts, control=self.control)

    @property
    def chosen_control(self) -> ControlMessages:
        """How control messages are sent, where there are any."""
        return self.control or _CONTROL

    @property
    def processed_by(self) -> str:
        """The endpoint that receives the control messages instead of this one, or empty."""
        return self.chosen_control.processed_by

    def plan_store(self, *, entities: bool) -> StorePlan:
        """Return what the store setting means for handlers that work on `entities`, or not.

        Raises SetupError if control messages would give up a transaction that may still be committed.
        """
        plan = self.store_plan.for_entities() if entities else self.store_plan
        if problem := self._control_problem(plan):
            raise SetupError(problem)
        return plan

    def _control_problem(self, plan: StorePlan) -> str | None:
        if not plan.has_transactions or not plan.has_controls:
            return None
        return control_problem(self.max_commit, self.chosen_control)

    @property
    def all_peers(self) -> tuple[Peer, ...]:
        return tuple(each if isinstance(each, Peer) else Peer(each) for each in self.peers)

    @property
    def protocol_peers(self) -> tuple[Peer, ...]:
        """Those that implement the protocol of docs/explanation/http.md."""
        return tuple(peer for peer in self.all_peers if not peer.is_third_party)

    @property
    def third_parties(self) -> tuple[Peer, ...]:
        """Those that do not."""
        return tuple(peer for peer in self.all_peers if peer.is_third_party)

    @property
    def makes_artifacts(self) -> bool:
        """Whether handlers may make anything but messages, so that attempts are registered."""
        return self.blobs is not None or _any_of_the_protocol(self.peers)

    @cached_property
    def places(self) -> EndpointLocations:
        """Where the endpoint keeps things, each read once. Raises SetupError; not after construction."""
        store = locate(self.store, "store")
        return EndpointLocations(
            store=store,
            transport=NO_TRANSPORT if self.transport is None else locate(self.transport, "transport"),
            dead_letters=store if self.dead_letters is None else locate(self.dead_letters, "dead_letters"),
            blobs=None if self.blobs is None else locate(self.blobs, "blobs"),
            projections={
                name: locate(place, "projections") for name, place in (self.projections or {}).items() if isinstance(place, str)
            },
        )

    @property
    def known_destinations(self) -> Sequence[DestinationRule]:
        """The destinations of the transport that are not endpoints, if they are known before it is opened."""
        traits = self.places.transport.traits
        return () if traits is None else traits.destinations

    def destinations(self, rules: Sequence[DestinationRule]) -> DestinationPolicy:
        """Return which destinations messages may have, with a transport that has these rules."""
        if self.destinations_of_test is not None:
            return self.destinations_of_test
        return DestinationPolicy(
            rules=rules,
            transport=str(self.places.transport),
            events=self.events,
            by_token=isinstance(self.deduplication, Tokens),
            has_queues=self.has_queue or not self.has_transport,
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
        wrong += self._projection_problems()
        yield from wrong
        yield from self._sql_problems()
        undecided = tuple(self._deduplication_problems(located=not wrong))
        yield from undecided
        yield from self._overlap_problems(decided=not (wrong or undecided))
        yield from self._peer_problems()
        if problem := rule_problem(self.identity):
            yield problem
        yield from self._format_problems()
        if isinstance(self.retry, Retry):
            yield from self.retry.problems()
        else:
            yield f"retry must be a Retry(...), not {self.retry!r}"
        if not _is_time(self.timeout):
            yield f"timeout must be a number of seconds above 0, at most a day, not {self.timeout!r}"
        if self.max_hops is not None and not (type(self.max_hops) is int and 1 <= self.max_hops <= MOST_HOPS):
            yield f"max_hops must be a whole number from 1 to {MOST_HOPS:,}, or None for no limit, not {self.max_hops!r}"
        if problem := names_problem(self.carry_headers):
            yield f"carry_headers: {problem}"
        if not wrong:
            policy = self.destinations(self.known_destinations)
            yield from event_rule_problems(self.events, policy)
            yield from host_queue_problems(self.receives_from, policy, has_transport=self.has_transport)
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

    def _format_problems(self) -> Iterator[str]:
        if self.format is None:
            return
        from onceonly.formats.message_formats import CloudEvents, format_problem  # noqa: PLC0415 - few endpoints have one

        if problem := format_problem(self.format):
            yield problem
        elif isinstance(self.format, CloudEvents):
            return
        if self.identity is not None:
            yield "identity cannot be used with format: the format reads the id. Remove identity, or set the id in the format"
        if isinstance(self.deduplication, Tokens):
            yield "format must be CloudEvents() with deduplication=Tokens(...): tokens are attributes of CloudEvents"

    def _waiting_problems(self) -> Iterator[str]:
        if not _is_time(self.relay_after):
            yield f"relay_after must be a number of seconds above 0, at most a day, not {self.relay_after!r}"
        if not _is_seconds(self.unknown_types_wait) or not 0 <= self.unknown_types_wait <= DAY_SECONDS:
            yield (
                "unknown_types_wait must be a number of seconds from 0, to wait for no other process, to a day, "
                f"not {self.unknown_types_wait!r:.100}"
            )

    def retention_problems(self, retry: Retry | None = None, timeout: float | None = None) -> Iterator[str]:
        """Return why what is kept would be forgotten too early for these retries, or the endpoint's own."""
        chosen, timeout = self.deduplication, timeout or self.timeout
        policy: object = retry or self.retry  # what a user wrote, whatever the annotation says
        if not isinstance(chosen, History | Shadow | DedupStore | Tokens) or not isinstance(policy, Retry) or policy.problems():
            return
        if not (is_duration(self.manual_retry) and is_duration(self.max_commit) and _is_time(timeout)):
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
        elif located and self.places.store.family is not Family.SQL:
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
            known = "History(...), DedupStore(url), Tokens(url), Shadow(...) or Off()"
            yield f"deduplication must be {known}, not {an(type(chosen).__name__)}"
            return
        if not located:
            return
        try:
            _ = self.plan  # decided here once, and kept
        except SetupError as error:
            yield str(error)

    def _projection_problems(self) -> Iterator[str]:
        if self.projections is None:
            return
        if not isinstance(self.projections, Mapping):
            kind = an(type(self.projections).__name__)
            yield f'projections must map names to URLs, such as {{"cache": "redis://host/0?prefix=cache:"}}, not {kind}'
            return
        for name, place in self.projections.items():
            if not is_projection_name(name):
                yield (
                    f"projections: {name!r:.80} is not a name: use a lower-case letter, then at most 62 lower-case letters, "
                    "digits, '_' and '-'"
                )
            elif isinstance(place, str):
                if problem := problem_of(place, "projections"):
                    yield problem
            elif not isinstance(place, Projection):
                yield f"projections: {name!r} must be a URL or have the methods of Projection, not {an(type(place).__name__)}"

    def _overlap_problems(self, *, decided: bool) -> Iterator[str]:
        if not decided:
            return
        places, plan = self.places, self.plan
        documents = (
            ("store", places.store),
            ("dead_letters", None if places.dead_letters is places.store else places.dead_letters),
            ("deduplication", plan.marks),
            ("tokens", None if plan.tokens_in_store else plan.tokens),
            *(("projections", place) for place in places.projections.values()),
        )
        others = (("blobs", places.blobs),)
        yield from overlap_problems(
            [UsedPlace(role, place) for role, place in documents if place is not None],
            [UsedPlace(role, place) for role, place in others if place is not None],
        )

    def _control_problems(self, *, decided: bool) -> Iterator[str]:
        if not isinstance(self.control, ControlMessages | None):
            yield f"control must be ControlMessages(...), not {self.control!r}"
        elif not decided:
            return
        elif self.processed_by and not self.plan.records:
            yield (
                f"control: processed_by cannot be used with {without_records(self.deduplication)}: "
                "remove processed_by, or use History()"
            )
        elif self.processed_by and self.plan.tokens is not None:
            yield (
                f"control: processed_by={self.processed_by!r} cannot be used with Tokens(...): only a "
                "worker of this endpoint can clean up its tokens. Remove processed_by, and run the endpoint"
            )
        elif is_duration(self.max_commit) and (problem := self._control_problem(self.store_plan)):
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


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= DAY_SECONDS


_Owner = TypeVar("_Owner")
_Made = TypeVar("_Made")
_Arguments = ParamSpec("_Arguments")


def takes(
    kind: Callable[_Arguments, _Made],
) -> Callable[[Callable[[_Owner, _Made], None]], Callable[Concatenate[_Owner, _Arguments], None]]:
    """Make a method take the arguments of a class, and receive an object of it.

    Type checkers, `inspect.signature` and `help` show the arguments of the class.
    """
    arguments = inspect.signature(kind).parameters.values()

    def decorate(method: Callable[[_Owner, _Made], None]) -> Callable[Concatenate[_Owner, _Arguments], None]:
        @wraps(method)
        def called(owner: _Owner, /, *args: _Arguments.args, **options: _Arguments.kwargs) -> None:
            method(owner, kind(*args, **options))

        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        described: Any = called
        described.__signature__ = inspect.Signature([owner, *arguments], return_annotation=None)
        return called

    return decorate


def _any_of_the_protocol(peers: object) -> bool:
    """Return whether one of these implements the protocol. They are checked later, so they may be anything."""
    return isinstance(peers, Sequence) and any(not isinstance(peer, Peer) or not peer.is_third_party for peer in peers)
