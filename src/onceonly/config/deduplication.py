"""Settings of an endpoint: frozen, checked on construction, all problems reported at once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from itertools import pairwise
from typing import Any, TypeGuard

from msgspec import Struct

from onceonly.config.location import Location, locate
from onceonly.model.errors import SetupError
from onceonly.model.limits import NAME_RULE, is_endpoint_name
from onceonly.model.wording import an
from onceonly.systems import Family

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")


@dataclass(frozen=True)
class History:
    """Deduplication by claims in the endpoint's store, which are stored at least for `retention`.

    `FOREVER` keeps them all. The retention is stored at the first start, and `onceonly retention set` changes it: what is
    stored holds. A start is refused if it is less than this. A later copy of a message from an endpoint is a dead letter,
    "behind the horizon". A later copy of another message is handled again.
    """

    retention: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        if not _is_positive(self.retention):
            raise SetupError(f"History: retention must be a timedelta longer than 0, not {self.retention!r}")


@dataclass(frozen=True)
class Off:
    """No deduplication: at-least-once, for control runs and comparisons. Copies are handled again."""


@dataclass(frozen=True)
class Shadow:
    """No deduplication, and a report of what `History(retention)` would have done. For the time before it is switched on.

    Each message is handled as with `Off()`, copies included. Its claim is stored as with `History`, in the transaction of its
    changes. `onceonly status`, the log and the metrics count the messages that `History` would not have handled. Replace
    `Shadow` by `History` with the same retention at any time: the claims hold from then on. Needs a SQL store.
    """

    retention: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        if not _is_positive(self.retention):
            raise SetupError(f"Shadow: retention must be a timedelta longer than 0, not {self.retention!r}")


@dataclass(frozen=True)
class DedupStore:
    """Deduplication by a separate store at `url`, which stores handled messages for `retention`.

    The endpoint's own store deletes them. `FOREVER` keeps them all. The retention is stored in the dedup store at the first
    start, and `onceonly retention set` changes it: what is stored holds. A copy of a message from an endpoint that arrives
    later is a dead letter, "behind the horizon". A copy of another message is handled again, so choose a longer time than any
    copy can take.
    """

    url: str = field(repr=False)  # may hold a password
    retention: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        _refuse("DedupStore", self._problems())

    def _problems(self) -> Iterator[str]:
        if not is_url(self.url):
            yield f'url must be a URL, such as "dynamodb://region/table", not {_url_in_error(self.url)}'
        if not _is_positive(self.retention):
            yield f"retention must be a timedelta longer than 0, not {self.retention!r}"


@dataclass(frozen=True)
class Tokens:
    """Deduplication without lasting claims. A message is handled only while its token is live. Handling consumes the token.

    `url` is the token store, which all endpoints that send to one another share. Empty means the endpoint's own SQL database.
    `subscribers` maps every type of event that this endpoint publishes or handles to the endpoints that receive it. Tokens
    that were prepared longer ago than `sweep_after` and did not become live are deleted. `retention` applies only to the
    answers under clients' keys of transactions.
    """

    url: str = field(default="", repr=False)
    subscribers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sweep_after: timedelta = timedelta(minutes=10)
    retention: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        _refuse("Tokens", self._problems())
        copied = {type_: tuple(endpoints) for type_, endpoints in self.subscribers.items()}
        object.__setattr__(self, "subscribers", copied)  # a copy, which the caller cannot change

    def _problems(self) -> Iterator[str]:
        if self.url != "" and not is_url(self.url):
            yield f'url must be a URL, such as "dynamodb://region/table", or empty, not {_url_in_error(self.url)}'
        if not _is_positive(self.sweep_after):
            yield f"sweep_after must be a timedelta longer than 0, not {self.sweep_after!r}"
        if not _is_positive(self.retention):
            yield f"retention must be a timedelta longer than 0, not {self.retention!r}"
        if isinstance(self.subscribers, Mapping):
            yield from _subscriber_problems(self.subscribers)
        else:
            found = an(type(self.subscribers).__name__)
            yield f"subscribers must map event types to lists of endpoint names, not be {found}"


LONGEST_ANSWERS = timedelta(days=30)


@dataclass(frozen=True)
class ControlMessages:
    """How a worker finishes the transactions of a process that died, without a search of the store.

    Before its commit, each transaction sends a delayed message to the endpoint's queue. A worker then checks the transaction
    after each of the `delays`. The delays follow one another. At the last check, a transaction that is not committed is given
    up permanently. The sum of the delays must therefore exceed `max_commit`, the longest time from the beginning of a
    transaction to its commit.

    Answers to clients, and the records that an attempt has ended, are stored for `retention`. `processed_by` names the
    endpoint on the same store whose worker does the checks. Set it for an application that only sends and has no worker.
    """

    delays: Sequence[timedelta] = (
        timedelta(seconds=10),
        timedelta(seconds=30),
        timedelta(minutes=2),
        timedelta(minutes=10),
        timedelta(minutes=30),
    )
    max_commit: timedelta = timedelta(minutes=5)
    retention: timedelta = timedelta(days=1)
    processed_by: str = ""

    def __post_init__(self) -> None:
        _refuse("ControlMessages", self._problems())
        object.__setattr__(self, "delays", tuple(self.delays))  # a copy, which the caller cannot change

    @property
    def span(self) -> timedelta:
        """The time from the announcement of an attempt to its last check."""
        return sum(self.delays, timedelta())

    def _problems(self) -> Iterator[str]:
        if self.processed_by != "" and not is_endpoint_name(self.processed_by):
            yield f"processed_by: {self.processed_by!r}: {NAME_RULE}"
        if not _are_delays(self.delays):
            yield f"delays must be a list of timedeltas longer than 0, not {self.delays!r}"
            return
        if not _is_positive(self.max_commit) or not _is_positive(self.retention):
            yield "max_commit and retention must be timedeltas longer than 0"
            return
        if any(later < earlier for earlier, later in pairwise(self.delays)):
            yield f"delays are {', '.join(map(str, self.delays))}: sort them, shortest first"
        if self.span <= self.max_commit:
            yield (
                f"the delays total {self.span}, which is not longer than max_commit={self.max_commit}: the "
                "transaction would be given up before its latest commit. Make the delays longer or "
                "max_commit shorter"
            )
        if self.retention < self.span + self.max_commit:
            yield (
                f"retention is {self.retention}, which is shorter than delays + max_commit = "
                f"{self.span + self.max_commit}: the record must still exist at the last check. Make "
                "retention longer"
            )
        if self.retention > LONGEST_ANSWERS:
            yield f"retention must be at most {LONGEST_ANSWERS.days} days, not {self.retention}"


Deduplication = History | DedupStore | Tokens | Off | Shadow
"""How an endpoint recognizes messages that it has handled."""


class ClaimMode(Enum):
    """What a SQL store keeps to know a message again. Where it `decides`, records wait until their effects are sent."""

    HISTORY = "history"
    """Claims stay for the retention: the store itself knows what is done (protocols, section 3)."""
    UNTIL_FORGOTTEN = "until forgotten"
    """Claims are deleted with their records: an admission elsewhere knows what is done (protocols, sections 4 and 5)."""
    TOKENS = "tokens"
    """No claims: a message is new while its token, in the same database, is live (protocols, section 5, one database)."""
    NOTHING = "nothing"
    """Neither claims nor records: at-least-once, for control runs."""
    SHADOW = "shadow"
    """Claims and records as with HISTORY, which decide nothing: at-least-once, and what would have been known is counted."""

    @property
    def claims(self) -> bool:
        return self in (ClaimMode.HISTORY, ClaimMode.UNTIL_FORGOTTEN, ClaimMode.SHADOW)

    @property
    def has_history(self) -> bool:
        """Whether claims stay for the retention, in time buckets."""
        return self in (ClaimMode.HISTORY, ClaimMode.SHADOW)

    @property
    def decides(self) -> bool:
        """Whether what is stored decides if a message is handled. Otherwise every delivery is."""
        return self not in (ClaimMode.NOTHING, ClaimMode.SHADOW)


class DeduplicationPlan(Struct, frozen=True, kw_only=True):
    """What a deduplication setting comes to for one store. Everything that depends on the kind of setting is read here.

    `claims` is what a SQL store keeps. `history` is for how long the store knows what is done, None where another place knows
    it. `retention` is for how long a copy is known at all. `marks` is where a dedup store is; `tokens` is where tokens are,
    which may be the store itself (`tokens_in_store`). `records` is false where a crash may lose what a handler sends.
    """

    claims: ClaimMode
    records: bool = True
    history: timedelta | None = None
    retention: timedelta | None = None
    marks: Location | None = None
    tokens: Location | None = None
    tokens_in_store: bool = False
    sweep_after: timedelta | None = None
    subscribers: Mapping[str, Sequence[str]] | None = None


def plan_deduplication(chosen: Deduplication, store: Location) -> DeduplicationPlan:
    """Decide what a setting means for a store: the one place that takes it apart. Raises SetupError for a URL of no use."""
    match chosen:
        case History(retention):
            return DeduplicationPlan(claims=ClaimMode.HISTORY, history=retention, retention=retention)
        case DedupStore(url, retention):
            marks = locate(url, "deduplication")
            return DeduplicationPlan(claims=ClaimMode.UNTIL_FORGOTTEN, retention=retention, marks=marks)
        case Tokens():
            return _plan_tokens(chosen, store)
        case Off():
            return DeduplicationPlan(claims=ClaimMode.NOTHING, records=False)
        case Shadow(retention):
            if store.family is not Family.SQL:
                raise SetupError(f"Shadow() needs a SQL store, and {store} is not a SQL database: use Off() or History()")
            return DeduplicationPlan(claims=ClaimMode.SHADOW, records=False, history=retention, retention=retention)


def without_records(chosen: Deduplication) -> str:
    """Name a setting whose plan has no `records`, in a sentence about what needs them."""
    does = "dispatches" if isinstance(chosen, Shadow) else "stores"
    return f"deduplication={type(chosen).__name__}(), which {does} no records"


def _plan_tokens(chosen: Tokens, store: Location) -> DeduplicationPlan:
    has_tables = store.family is Family.SQL
    inside = has_tables and (not chosen.url or chosen.url == store.setting)
    if not chosen.url and not has_tables:
        raise SetupError(f"Tokens() without a URL needs a SQL store, and {store} is not a SQL database: use Tokens(url)")
    return DeduplicationPlan(
        claims=ClaimMode.TOKENS if inside else ClaimMode.UNTIL_FORGOTTEN,
        retention=chosen.retention,
        tokens=locate(chosen.url, "tokens") if chosen.url else store,
        tokens_in_store=inside,
        sweep_after=chosen.sweep_after,
        subscribers=chosen.subscribers,
    )


def is_duration(value: object) -> TypeGuard[timedelta]:
    """Return whether this is a duration at all; zero and less than that are."""
    return isinstance(value, timedelta)


def is_url(url: object) -> bool:
    return isinstance(url, str) and _URL.match(url) is not None


def _subscriber_problems(subscribers: Mapping[Any, Any]) -> Iterator[str]:
    for type_, endpoints in subscribers.items():
        if not isinstance(type_, str) or not type_.strip():
            yield f"subscribers: {type_!r} is not an event type: use a string that is not blank"
        if isinstance(endpoints, str | bytes) or not isinstance(endpoints, Sequence):
            yield f"subscribers[{type_!r}] must be a list of endpoint names, not {endpoints!r}"
            continue
        if wrong := [name for name in endpoints if not is_endpoint_name(name)]:
            yield f"subscribers[{type_!r}]: invalid endpoint name {', '.join(map(repr, wrong))}: {NAME_RULE}"


def _are_delays(delays: object) -> bool:
    return isinstance(delays, Sequence) and len(delays) > 0 and all(map(_is_positive, delays))


def _is_positive(duration: object) -> bool:
    return isinstance(duration, timedelta) and duration > timedelta()


def _url_in_error(url: object) -> str:
    """Return what was given instead of a URL, without anything that may be a password."""
    return "this text" if isinstance(url, str) and url else repr(url) if url == "" else an(type(url).__name__)


def _refuse(setting: str, problems: Iterator[str]) -> None:
    if wrong := tuple(problems):
        raise SetupError("; ".join(f"{setting}: {problem}" for problem in wrong))
