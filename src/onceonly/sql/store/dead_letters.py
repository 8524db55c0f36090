"""Dead letters in a SQL database."""

from collections.abc import Sequence

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, and_, delete, func, literal, select, true

from onceonly.formats.records import decode_letter, encode_letter
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import Filter
from onceonly.sql.columns import READABLE
from onceonly.sql.database import Database
from onceonly.sql.store.portions import chunks
from onceonly.sql.store.tables import tables


class SqlDeadLetters:
    """Dead letters of all endpoints that use this database. Everything here raises CommitFailed, OutcomeUnknown."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._letters = tables(database.prefix, database.schema).dead_letters

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
        }
        async with self._database.writing() as connection:
            await connection.run_sync(self._database.dialect.insert_absent, self._letters, [row], key=["key"])

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters in the order they were added; from the beginning when no letter has the key `after`."""
        letters = self._letters.c
        query = select(letters.letter).where(self._matching(chosen)).order_by(letters.position).limit(limit)
        if after:
            before = select(letters.position).where(letters.key == after).scalar_subquery()
            query = query.where(letters.position > func.coalesce(before, 0))
        async with self._database.reading() as connection:
            return tuple(decode_letter(stored) for stored in await connection.scalars(query))

    async def get(self, key: str) -> DeadLetter | None:
        """Give one letter, or None."""
        query = select(self._letters.c.letter).where(self._letters.c.key == key)
        async with self._database.reading() as connection:
            stored = await connection.scalar(query)
        return None if stored is None else decode_letter(stored)

    async def count(self, chosen: Filter) -> int:
        """Count letters."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(func.count()).select_from(self._letters).where(self._matching(chosen))) or 0

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove letters, in one database transaction."""
        distinct = sorted(set(keys))
        statement = delete(self._letters).where(self._database.dialect.among(self._letters.c.key, "keys"))

        def remove(connection: Connection) -> int:
            return sum(connection.execute(statement, {"keys": some}).rowcount for some in chunks(distinct))

        async with self._database.writing() as connection:
            return await connection.run_sync(remove)

    def _matching(self, chosen: Filter) -> ColumnElement[bool]:
        letters = self._letters.c
        conditions = [
            letters.endpoint == chosen.endpoint if chosen.endpoint else true(),
            letters.type == chosen.type if chosen.type else true(),
            # LIKE ignores case here and not there, and would need escapes; this compares exactly, everywhere
            func.replace(letters.reason, literal(chosen.reason, READABLE), "") != letters.reason if chosen.reason else true(),
        ]
        return and_(*conditions)
