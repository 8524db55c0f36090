"""What the admin's pages read: a limited number of rows, found by an index, on Django's own connection.

Models cannot name an index. MariaDB would read all letters of all endpoints to find those of a small one.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, Table, func, select

from onceonly.config.location import shown
from onceonly.formats.records import decode_record
from onceonly.formats.undecodable import decode_or_report
from onceonly.integrations.django.borrowed import borrowed_anyway, place_of_alias
from onceonly.integrations.django.configuration import configuration
from onceonly.integrations.django.endpoint import ENDPOINTS, DjangoEndpoint, place_of_endpoint
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.identity import Identity, claim_key
from onceonly.model.record import Record
from onceonly.sql.database_clock import DatabaseNow
from onceonly.sql.store.statements import BURIED
from onceonly.sql.store.tables import Tables, tables

LISTED = 5000
"""Dead letters that one list has. Older ones are in a list of their own."""
OLDEST = 1000
"""Pending records of one endpoint that the list has: the oldest."""
SAMPLED = 1000
"""The newest letters, whose types and reasons are offered as filters."""
OFFERED = 10
SHOWN_REASON = 120
MOST_ACTIONS = 20
MOST_ENDPOINTS = 200
MOST_PROCESSES = 20
COUNTED = 10_000
UNREADABLE_RECORD = "its messages wait"


class LetterChoice(NamedTuple):
    """Which letters a list has: of an endpoint, of a failure group of one (`failure`, in hexadecimal digits), before one."""

    endpoint: str = ""
    failure: str = ""
    before: int | None = None


class LetterWindow(NamedTuple):
    """The positions of the letters of a list, the newest first. `is_complete`: whether these are all, down to the first."""

    positions: tuple[int, ...]
    is_complete: bool

    @property
    def last(self) -> int:
        """The position before which the next list begins."""
        return self.positions[-1] if self.positions else 0


class LetterTraits(NamedTuple):
    """What the newest letters have: their types, and their failures with the endpoint and the reason of the newest letter."""

    types: tuple[str, ...]
    failures: Mapping[tuple[str, str], str]


class ActionTaken(NamedTuple):
    """What an operator did with a message."""

    number: int
    at: int
    actor: str
    action: str
    outcome: str
    detail: str


class EndpointRow(NamedTuple):
    """An endpoint, as the admin lists it. Counts end at `COUNTED`. `seen` of a process is in seconds ago."""

    name: str
    database: str
    transport: str
    pending: int
    oldest: int | None
    letters: int
    processes: tuple[tuple[str, int, str, int], ...]
    remark: str


def known_endpoints() -> tuple[DjangoEndpoint, ...]:
    """Return the endpoints of the project, and all others of this process. `manage.py check` reports what is wrong."""
    from onceonly.integrations.django.endpoints import load_endpoints  # noqa: PLC0415 - it imports the project's

    try:
        loaded = load_endpoints()
    except SetupError:
        loaded = ()
    return tuple(sorted({*loaded, *ENDPOINTS}, key=lambda each: (each.database, each.name)))


def endpoint_of(name: str, alias: str) -> DjangoEndpoint | None:
    """Return the endpoint with this name whose database has this alias."""
    return next((each for each in known_endpoints() if (each.name, each.database) == (name, alias)), None)


def aliases() -> tuple[str, ...]:
    """Return the databases of endpoints, that of `ONCEONLY["DATABASE"]` first."""
    first = configuration().database
    found = {each.database for each in known_endpoints()} or {first}
    return tuple(sorted(found, key=lambda alias: (alias != first, alias)))


def find_letters(alias: str, chosen: LetterChoice) -> LetterWindow:
    """Find the newest letters."""
    letters = _tables(alias).dead_letters
    query = _choosing(select(letters.c.position), letters, chosen).limit(LISTED + 1)
    with borrowed_anyway(alias) as connection:
        found = tuple(connection.scalars(query))
    return LetterWindow(found[:LISTED], len(found) <= LISTED)


def sample_letters(alias: str, endpoint: str) -> LetterTraits:
    """Return the types and failures of the newest letters, the most frequent first."""
    letters = _tables(alias).dead_letters
    columns = (letters.c.type, letters.c.endpoint, letters.c.failure, func.substr(letters.c.reason, 1, SHOWN_REASON))
    query = _choosing(select(*columns), letters, LetterChoice(endpoint)).limit(SAMPLED)
    with borrowed_anyway(alias) as connection:
        rows = connection.execute(query).all()
    types: dict[str, int] = {}
    failures: dict[tuple[str, str], tuple[int, str]] = {}
    for type_, name, failure, reason in rows:
        if not isinstance(failure, bytes):  # SQLite stores a value of any type in any column
            continue
        types[str(type_)] = types.get(str(type_), 0) + 1
        count, first = failures.get((str(name), failure.hex()), (0, str(reason)))
        failures[str(name), failure.hex()] = (count + 1, first)
    often = sorted(types, key=lambda each: -types[each])[:OFFERED]
    groups = sorted(failures, key=lambda each: -failures[each][0])[:OFFERED]
    return LetterTraits(tuple(often), {each: failures[each][1] for each in groups})


def letter_endpoints(alias: str) -> tuple[str, ...]:
    """List the names of the endpoints that have dead letters."""
    with borrowed_anyway(alias) as connection:
        return tuple(_names(connection, _tables(alias).dead_letters))


def record_endpoints(alias: str) -> tuple[str, ...]:
    """List the names of the endpoints that have pending records."""
    with borrowed_anyway(alias) as connection:
        return tuple(name for name in _names(connection, _tables(alias).records) if name != BURIED)


def find_records(alias: str, endpoint: str) -> tuple[str, ...]:
    """Find the oldest pending records of an endpoint, or of each, by their keys in hexadecimal digits."""
    records, found = _tables(alias).records, list[str]()
    names = (endpoint,) if endpoint else record_endpoints(alias)
    with borrowed_anyway(alias) as connection:
        for name in names:
            query = select(records.c.key).where(records.c.endpoint == name, records.c.endpoint != BURIED)
            keys = connection.scalars(query.order_by(records.c.stored_at).limit(OLDEST))
            found += [key.hex() for key in keys if isinstance(key, bytes)]
            if len(found) >= LISTED:
                break
    return tuple(found[:LISTED])


def read_record(source: str, message_id: str, stored: Any) -> Record | None:
    """Decode a pending record. None for one that this version cannot read."""
    identity = Identity(source, message_id)
    return decode_or_report(lambda: decode_record(identity, bytes(stored)), "record", message_id, UNREADABLE_RECORD)


def actions_on(alias: str, letter: DeadLetter) -> tuple[ActionTaken, ...]:
    """List what operators did with the message of a letter, the newest first."""
    if letter.message is None:
        return ()
    own = _tables(alias)
    items, actions = own.action_items.c, own.actions.c
    columns = (actions.position, actions.at, actions.actor, actions.action, items.outcome, items.detail)
    query = select(*columns).join_from(own.action_items, own.actions, items.action == actions.position)
    query = query.where(items.identity == claim_key(letter.endpoint, letter.message.identity))
    with borrowed_anyway(alias) as connection:
        return tuple(ActionTaken(*row) for row in connection.execute(query.order_by(items.action.desc()).limit(MOST_ACTIONS)))


def list_endpoints() -> Iterator[EndpointRow]:
    """List the endpoints of the project, and those of which only rows are left."""
    known = known_endpoints()
    for alias in aliases():
        own = {each.name: each for each in known if each.database == alias}
        stored = {*letter_endpoints(alias), *record_endpoints(alias)}
        for name in sorted({*own, *stored}):
            yield _row(alias, name, own.get(name))


def _row(alias: str, name: str, endpoint: DjangoEndpoint | None) -> EndpointRow:
    own = _tables(alias)
    records, letters = own.records.c, own.dead_letters.c
    processes = own.processes.c
    pending = select(records.stored_at).where(records.endpoint == name).order_by(records.stored_at)
    given_up = select(letters.position).where(letters.endpoint == name)
    running = select(processes.host, processes.pid, processes.version, (DatabaseNow() - processes.seen).label("since"))
    running = running.where(processes.endpoint == name).order_by(processes.seen.desc()).limit(MOST_PROCESSES)
    with borrowed_anyway(alias) as connection:
        first, now = connection.scalar(pending.limit(1)), connection.scalar(select(DatabaseNow()))
        return EndpointRow(
            name=name,
            database=alias,
            transport=shown(endpoint.settings.transport) if endpoint is not None else "",
            pending=_count(connection, pending),
            oldest=None if first is None or now is None else max(0, (now - first) // 1000),
            letters=_count(connection, given_up),
            processes=tuple((row.host, row.pid, row.version, max(0, row.since // 1000)) for row in connection.execute(running)),
            remark=_remark(alias, endpoint),
        )


def _remark(alias: str, endpoint: DjangoEndpoint | None) -> str:
    if endpoint is None:
        return 'It is not in ONCEONLY["ENDPOINTS"].'
    here, there = place_of_alias(alias), place_of_endpoint(endpoint)
    if (here.prefix, here.schema) != (there.prefix, there.schema):
        return "Its store= names other tables than those of `migrate`. These pages do not show them."
    if endpoint.settings.dead_letters is not None:
        return f"Its dead letters are in {shown(endpoint.settings.dead_letters)}. These pages do not show them."
    return ""


def _count(connection: Connection, query: Select[Any]) -> int:
    return connection.scalar(select(func.count()).select_from(query.limit(COUNTED).subquery())) or 0


def _choosing(query: Select[Any], letters: Table, chosen: LetterChoice) -> Select[Any]:
    conditions: list[ColumnElement[bool]] = []
    if chosen.endpoint:
        index = f"{letters.name}_{'failure' if chosen.failure else 'endpoint'}"
        query = query.with_hint(letters, f"FORCE INDEX ({index})", "mysql")
        conditions.append(letters.c.endpoint == chosen.endpoint)
    if chosen.failure:
        conditions.append(letters.c.failure == bytes.fromhex(chosen.failure))
    if chosen.before is not None:
        conditions.append(letters.c.position < chosen.before)
    return query.where(*conditions).order_by(letters.c.position.desc())


def _names(connection: Connection, table: Table) -> Iterator[str]:
    """List the names of endpoints in a table, each found by the index."""
    name, found = table.c.endpoint, ""
    for _ in range(MOST_ENDPOINTS):
        query = select(name).where(name > found).order_by(name).limit(1)
        following = connection.scalar(query)
        if not isinstance(following, str):
            return
        found = following
        yield found


def _tables(alias: str) -> Tables:
    place = place_of_alias(alias)
    return tables(place.prefix, place.schema)
