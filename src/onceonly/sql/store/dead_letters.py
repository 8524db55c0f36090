"""Dead letters in a SQL database."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Column, ColumnElement, Connection, Select, and_, delete, func, literal, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly.formats.records import decode_letter, encode_letter
from onceonly.formats.undecodable import StoredLetter, readable_letter, report_letter
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.failure_group import failure_group
from onceonly.model.identity import CLAIM_KEY_BYTES, Identity, claim_key
from onceonly.ports.dead_letters import Extent, Filter, GroupCount, GroupCounts, LetterSearch, PlacedLetter
from onceonly.ports.measurements import AgedCount
from onceonly.sql.columns import NAME, READABLE
from onceonly.sql.database import Database
from onceonly.sql.store.actions import SqlActionLog
from onceonly.sql.store.statements import chunks
from onceonly.sql.store.tables import tables

COUNTED = 200_000
"""Dead letters are counted by group up to this number, and not beyond it."""
MOST_GROUPS = 1000
"""More groups than this are not described."""
MOST_BODIES = 100


class SqlDeadLetters:
    """Dead letters of all endpoints that use this database. Everything here raises CommitFailed, OutcomeUnknown."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._letters = tables(database.prefix, database.schema).dead_letters
        self.actions = SqlActionLog(database)

    async def add(self, letter: DeadLetter) -> None:
        """Store it, unless one with its key is there. One that was stored elsewhere before keeps its time."""
        stamped = replace(letter, at=letter.at or self._database.clock.now())
        row = {
            "key": letter.key,
            "endpoint": letter.endpoint,
            "type": letter.message.type if letter.message else "",
            "reason": letter.reason,
            "stored_at": stamped.at,
            "letter": encode_letter(stamped),
            "failure": failure_group(letter).key,
            "identity": _identity_key(letter),
        }
        async with self._database.autocommitting() as connection:
            await connection.run_sync(self._database.dialect.insert_absent, self._letters, [row], key=["key"])

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters in the order they were added; from the beginning when no letter has the key `after`."""
        letters = self._letters.c
        query = self._reading().where(self._matching(chosen))
        query = self._by_index(query, chosen).order_by(letters.position).limit(limit)
        if after:
            before = select(letters.position).where(letters.key == after).scalar_subquery()
            query = query.where(letters.position > func.coalesce(before, 0))
        async with self._database.reading() as connection:
            return tuple(placed.letter for placed in _placed(await connection.execute(query)))

    async def get(self, key: str) -> DeadLetter | None:
        query = self._reading().where(self._letters.c.key == key)
        async with self._database.reading() as connection:
            found = _placed(await connection.execute(query))
        return found[0].letter if found else None

    async def count(self, chosen: Filter) -> int:
        async with self._database.reading() as connection:
            return await connection.scalar(select(func.count()).select_from(self._letters).where(self._matching(chosen))) or 0

    async def measure_letters(self, endpoint: str, limit: int) -> AgedCount:
        """Count the letters of an endpoint up to a limit; see `ports.measurements`."""
        letters = self._letters.c
        some = select(letters.position).where(letters.endpoint == endpoint).limit(limit).subquery()
        count = select(func.count()).select_from(some)
        first = select(letters.stored_at).where(letters.endpoint == endpoint).order_by(letters.position).limit(1)
        async with self._database.reading() as connection:
            return AgedCount(count=await connection.scalar(count) or 0, oldest=await connection.scalar(first) or 0)

    async def remove(self, keys: Sequence[str]) -> int:
        distinct = sorted(set(keys))
        statement = delete(self._letters).where(self._database.dialect.among(self._letters.c.key, "keys"))

        def remove(connection: Connection) -> int:
            return sum(connection.execute(statement, {"keys": some}).rowcount for some in chunks(distinct))

        async with self._database.writing() as connection:
            return await connection.run_sync(remove)

    async def endpoints(self) -> tuple[str, ...]:
        """List the names of endpoints, each found by the index; see the port."""
        letters, found = self._letters.c, list[str]()
        first = select(letters.endpoint).order_by(letters.endpoint).limit(1)
        async with self._database.reading() as connection:
            while name := await connection.scalar(first.where(letters.endpoint > found[-1]) if found else first):
                found.append(name)
        return tuple(found)

    async def groups(self, endpoint: str = "") -> GroupCounts:
        async with self._database.reading() as connection:
            limited = await self._may_be_many(connection, endpoint)
            rows = (await connection.execute(self.counting(endpoint, limited=limited))).all()
            total = sum(row.count for row in rows)
            largest = sorted(rows, key=lambda row: (-row.count, row.first))[:MOST_GROUPS]
            shown = await self._rows_at(connection, {position for row in largest for position in (row.first, row.last)})
        counts = tuple(_count(row, shown) for row in largest if row.first in shown and row.last in shown)
        return GroupCounts(counts, complete=total <= COUNTED and len(rows) <= MOST_GROUPS)

    def counting(self, endpoint: str = "", *, limited: bool = True) -> Select[Any]:
        """Return the query that counts letters by group, from the index of groups."""
        letters = self._letters.c
        by: tuple[Column[Any], ...] = (letters.endpoint, letters.failure, letters.position)
        some, group = select(*by), select()
        if endpoint:  # MariaDB would sort 100,000 rows by a column that is constant, and read each of them for that
            by, group = by[1:], select(literal(endpoint, NAME).label("endpoint"))
            some = select(*by).where(letters.endpoint == endpoint)
        *keys, position = some.order_by(*by).limit(COUNTED + 1).subquery().c if limited else by
        counted = (func.count().label("count"), func.min(position).label("first"), func.max(position).label("last"))
        query = group.add_columns(*keys, *counted).group_by(*keys)
        if limited or not endpoint:
            return query
        return self._use_index("failure", query.where(letters.endpoint == endpoint))

    async def _may_be_many(self, connection: AsyncConnection, endpoint: str) -> bool:
        """Return whether there may be more letters than are counted, so that the query needs a limit.

        With a limit, MariaDB and SQLite store all rows that they count, which takes as long as counting them. PostgreSQL does
        not, and reads the index only for rows in its order.
        """
        if self._database.dialect.name == "postgresql":
            return True
        span = await connection.scalar(self.spanning(endpoint))
        return span is not None and span >= COUNTED

    def spanning(self, endpoint: str = "") -> Select[Any]:
        """Return the query for the distance of the first and the last position. There are not more letters than that."""
        letters = self._letters.c
        some = select(letters.position)
        some = some.where(letters.endpoint == endpoint) if endpoint else some
        first, last = (some.order_by(by).limit(1).scalar_subquery() for by in (letters.position, letters.position.desc()))
        return select(last - first)

    async def placed(
        self, chosen: Filter, *, after: int = 0, upto: int | None = None, limit: int = 100, newest: bool = False
    ) -> tuple[PlacedLetter, ...]:
        query = self.placing(chosen, after=after, upto=upto, limit=limit, newest=newest)
        async with self._database.reading() as connection:
            return _placed(await connection.execute(query))

    def placing(self, chosen: Filter, *, after: int, upto: int | None, limit: int, newest: bool) -> Select[Any]:
        letters = self._letters.c
        query = self._reading().where(self._matching(chosen), letters.position > after)
        query = query.where(letters.position <= upto) if upto is not None else query
        return self._by_index(query, chosen).order_by(letters.position.desc() if newest else letters.position).limit(limit)

    async def search(self, chosen: Filter, *, before: int | None, limit: int, read: int) -> LetterSearch:
        """Find the lowest position to read, then compare types and reasons from there on; see the port."""
        async with self._database.reading() as connection:
            count, last = (await connection.execute(self.limiting(chosen, before=before, read=read))).one()
            upto = None if before is None else before - 1
            query = self.placing(chosen, after=(last or 1) - 1, upto=upto, limit=limit, newest=True)
            rows: Sequence[Any] = (await connection.execute(query)).all() if count else ()
        placed = _placed(rows)
        if len(rows) == limit:
            return LetterSearch(placed, rows[-1].position)
        return LetterSearch(placed, last if count == read else 0)

    def limiting(self, chosen: Filter, *, before: int | None, read: int) -> Select[int, Any]:
        """Return the query for how many letters a search reads, and for the lowest position of them."""
        letters = self._letters.c
        indexed = Filter(endpoint=chosen.endpoint, failure=chosen.failure)
        some: Select[Any] = select(letters.position).where(self._matching(indexed))
        some = self._by_index(some.where(letters.position < before) if before is not None else some, chosen)
        newest = some.order_by(letters.position.desc()).limit(read).subquery().c
        return select(func.count().label("count"), func.min(newest.position).label("last"))

    async def extent(self, chosen: Filter, *, limit: int | None = None) -> Extent:
        """Count letters and read the highest position, from one state; see the port."""
        letters = self._letters.c
        some = select(letters.position).where(self._matching(chosen))
        count = select(func.count()).select_from((some if limit is None else some.limit(limit)).subquery())
        last = some.order_by(letters.position.desc()).limit(1)
        async with self._database.reading() as connection:
            query = select(count.scalar_subquery(), last.scalar_subquery())
            total, position = (await connection.execute(query)).one()
            return Extent(total, position or 0)

    async def of_message(self, endpoint: str, identity: Identity) -> tuple[DeadLetter, ...]:
        async with self._database.reading() as connection:
            found = await connection.execute(self.identifying(endpoint, identity))
            return tuple(placed.letter for placed in _placed(found))

    def identifying(self, endpoint: str, identity: Identity) -> Select[Any]:
        letters = self._letters.c
        query = self._reading().where(letters.identity == claim_key(endpoint, identity))
        return query.order_by(letters.position).limit(MOST_BODIES)

    def _reading(self) -> Select[Any]:
        letters = self._letters.c
        return select(letters.position, letters.key, letters.endpoint, letters.stored_at, letters.letter)

    async def _rows_at(self, connection: AsyncConnection, positions: set[int]) -> dict[int, Any]:
        letters = self._letters.c
        query = self._reading().where(self._database.dialect.among(letters.position, "positions"))
        rows = [row for some in chunks(sorted(positions)) for row in await connection.execute(query, {"positions": some})]
        return {row.position: row for row in rows}

    def _by_index(self, query: Select[Any], chosen: Filter) -> Select[Any]:
        """Name the index for letters of an endpoint, or of a group."""
        return self._use_index("failure" if chosen.failure else "endpoint", query) if chosen.endpoint else query

    def _use_index(self, index: str, query: Select[Any]) -> Select[Any]:
        """Name the index for MariaDB. Its optimizer would read all letters of all endpoints to find those of a small one."""
        return query.with_hint(self._letters, f"FORCE INDEX ({self._database.prefix}dead_letters_{index})", "mysql")

    def _matching(self, chosen: Filter) -> ColumnElement[bool]:
        letters = self._letters.c
        conditions = [
            letters.endpoint == chosen.endpoint if chosen.endpoint else true(),
            letters.type == chosen.type if chosen.type else true(),
            letters.failure == _failure_key(chosen.failure) if chosen.failure else true(),
            # LIKE ignores case here and not there, and would need escapes; this compares exactly, everywhere
            func.replace(letters.reason, literal(chosen.reason, READABLE), "") != letters.reason if chosen.reason else true(),
        ]
        return and_(*conditions)


def _placed(rows: Iterable[Any]) -> tuple[PlacedLetter, ...]:
    """Read rows. One that cannot be read gives what stands for it; one without a key can be neither shown nor deleted."""
    return tuple(PlacedLetter(row.position, letter_in(row)) for row in rows if _has_key(row))


def _has_key(row: Any) -> bool:
    """Return whether the key is text: SQLite stores a value of any type in any column."""
    if isinstance(row.key, str):
        return True
    report_letter(row.key, "its key is not text")
    return False


def letter_in(row: Any) -> DeadLetter:
    """Return the letter in a row, or what stands for one that cannot be read."""
    stored = bytes(row.letter) if isinstance(row.letter, bytes | bytearray | memoryview) else ascii(row.letter).encode()
    found = StoredLetter(
        key=row.key,
        stored=stored,
        endpoint=row.endpoint if isinstance(row.endpoint, str) else "",
        at=_instant(row.stored_at),
    )
    return readable_letter(found, lambda: decode_letter(stored))


def _instant(stored: object) -> int:
    return stored if isinstance(stored, int) else 0


def _count(row: Any, shown: Mapping[int, Any]) -> GroupCount:
    """Describe a group by its last letter; if that is unreadable, by its first. Its key is the one by which it is chosen."""
    first, last = shown[row.first], shown[row.last]
    described = [failure_group(letter) for letter in (letter_in(last), letter_in(first)) if not _hides(letter, row.failure)]
    group = described[0] if described else None
    return GroupCount(row.endpoint, group, row.count, _instant(first.stored_at), _instant(last.stored_at), last.key)


def _hides(letter: DeadLetter, failure: bytes) -> bool:
    """Return whether a letter was grouped before it became unreadable: what stands for it has another group."""
    return isinstance(letter, UnreadableLetter) and failure_group(letter).key != failure


def _identity_key(letter: DeadLetter) -> bytes | None:
    return claim_key(letter.endpoint, letter.message.identity) if letter.message else None


def _failure_key(digits: str) -> bytes:
    """Return the bytes of a group's key. No group has the key zero, which stands for digits that are not a key."""
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        key = b""
    return key if len(key) == CLAIM_KEY_BYTES else bytes(CLAIM_KEY_BYTES)
