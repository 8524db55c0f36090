"""The settings of an endpoint, all checked at once: what the wiring needs, and the policies its handlers start from."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from onceonly.model.errors import SetupError
from onceonly.model.retry import Retry
from onceonly.model.settings import NAME_RULE, Deduplication, DedupStore, History, Off, Tokens, is_endpoint_name, is_url
from onceonly.runtime.settings import WorkerSettings
from onceonly.serialization.identity import IdentityRule, rule_problem
from onceonly.wiring.schemes import has_no_tables, shown, url_problem

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One endpoint's settings. Raises SetupError that lists everything that is wrong with them.

    `store` is a URL, an `AsyncEngine` or an `async_sessionmaker`; `transport` is a URL; `dead_letters` names another database
    than the store's. `metadata` is a SQLAlchemy `MetaData` whose tables an embedded database gets at start. `timeout` is in
    seconds, for each handler; `relay_after` is how old, in seconds, a record must be before the relay takes it for left behind.
    `isolation` is the level of its units in a SQL store, such as "SERIALIZABLE"; without it what
    the URL says, or the database's own. `blobs` is the URL of the place where its handlers create blobs.
    """

    name: str
    store: object
    transport: str
    metadata: object = None
    isolation: str | None = None
    deduplication: Deduplication = field(default_factory=History)
    blobs: str | None = None
    dead_letters: object = None
    identity: IdentityRule | None = None
    retry: Retry = field(default_factory=Retry)
    timeout: float = 30.0
    relay_after: float = 10.0
    worker: WorkerSettings = field(default_factory=WorkerSettings)

    def __post_init__(self) -> None:
        """Check everything."""
        if problems := tuple(self._problems()):
            lines = "".join(f"\n  * {problem}" for problem in problems)
            raise SetupError(f"endpoint {self.name!r} cannot work with these settings:{lines}")

    def _problems(self) -> Iterator[str]:
        if not is_endpoint_name(self.name):
            yield NAME_RULE
        databases = (("store", self.store), *((("dead_letters", self.dead_letters),) if self.dead_letters is not None else ()))
        for role, setting in (*databases, ("transport", self.transport)):
            if problem := url_problem(setting, role):
                yield problem
        yield from self._sql_problems()
        yield from self._deduplication_problems()
        if self.blobs is not None and not is_url(self.blobs):
            yield 'blobs must be the URL of a place, such as "folder:///var/lib/shop" or "s3://bucket/prefix"'
        if problem := rule_problem(self.identity):
            yield problem
        if isinstance(self.retry, Retry):
            yield from self.retry.problems()
        else:
            yield f"retry must be a Retry(...), not {self.retry!r}"
        if not 0 < self.timeout <= DAY:
            yield f"timeout must be a number of seconds above 0, a day at most, not {self.timeout!r}"
        if not 0 < self.relay_after <= DAY:
            yield f"relay_after must be a number of seconds above 0, a day at most, not {self.relay_after!r}"
        if not isinstance(self.worker, WorkerSettings):
            yield f"worker must be WorkerSettings(...), not {self.worker!r}"

    def _deduplication_problems(self) -> Iterator[str]:
        chosen = self.deduplication
        if not isinstance(chosen, History | DedupStore | Tokens | Off):
            yield f"deduplication must be History(...), DedupStore(url), Tokens(url) or Off(), not a {type(chosen).__name__}"
        elif isinstance(chosen, Tokens) and not chosen.url and isinstance(self.store, str) and has_no_tables(self.store):
            yield f"Tokens() keeps them in the store's own SQL database; {shown(self.store)} is none, so write Tokens(url)"

    def _sql_problems(self) -> Iterator[str]:
        if self.metadata is not None and not hasattr(self.metadata, "create_all"):
            yield f"metadata must be a SQLAlchemy MetaData, such as Base.metadata, not {type(self.metadata).__name__}"
        if self.isolation is not None and not isinstance(self.isolation, str):
            yield f'isolation must be a level such as "SERIALIZABLE", not {self.isolation!r}'
