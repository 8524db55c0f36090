"""What is left in a place, counted by looking at all of it: tokens, records, register rows, and the entities' own sizes."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from sqlalchemy import Table, func, select

from benchmarks.tokens.chain import KINDS, SINCE
from onceonly.formats.documents import decode_entity
from onceonly.ports.documents import Document, Documents
from onceonly.sql.database import Database
from onceonly.sql.store.tables import tables

_STATE = msgspec.json.Decoder(dict[str, int | str]).decode
LASTING = ("count", "janitor")
"""Kinds of documents that stay, one for each endpoint: how many messages were dropped, and what its janitor did."""
_TOKEN = msgspec.json.Decoder(dict[str, int | str]).decode


class Sums(Struct):
    """What the entities of one class say together: how many messages, and the sum of their numbers."""

    count: int = 0
    total: int = 0


class TokenCensus(Struct):
    """Everything that is left. Sizes are in bytes, of an entity's document, or of its row's state where there are rows."""

    prepared: int = 0
    live: int = 0
    records: int = 0
    claims: int = 0
    register: int = 0
    dead: int = 0
    issued: int = 0
    """Marks of tokens that `onceonly send` has issued. They stay for a week, so that a file sent again is handled once."""
    other: int = 0
    """Documents that are none of these, no counter, and no janitor's journal: of both there is one for each endpoint."""
    entities: int = 0
    largest: int = 0
    size: int = 0
    sums: dict[str, Sums] = {}

    def note(self, key: str, size: int, state: bytes | None) -> None:
        """Take an entity in; its key is its class and its own."""
        self.entities += 1
        self.largest = max(self.largest, size)
        self.size += size
        if state is not None:
            said = _STATE(state)
            sums = self.sums.setdefault(key.partition("/")[0], Sums())
            sums.count += int(said["count"]) - SINCE
            sums.total += int(said["total"]) - SINCE

    def left(self) -> dict[str, int]:
        """Return what should not be there, by name."""
        names = ("prepared", "live", "records", "claims", "register", "dead", "other")
        return {name: number for name in names if (number := getattr(self, name))}


async def take(documents: Mapping[str, Documents], databases: Sequence[Database]) -> TokenCensus:
    """Count what is in all of these, each of which is given once."""
    census = TokenCensus()
    for place in documents.values():
        async for key, document in everything(place):
            _note_document(census, key, document)
    for database in databases:
        await _note_tables(census, database)
    return census


async def everything(place: Documents) -> AsyncIterator[tuple[str, Document]]:
    """Read all documents of a place."""
    after = ""
    while keys := await place.keys("", after=after):
        for key, document in (await place.load(keys)).items():
            yield key, document
        after = keys[-1]


def problems(census: TokenCensus, early: TokenCensus, *, messages: int) -> list[str]:
    """Say what is wrong after this many distinct messages, against what an earlier census saw; nothing when all is right."""
    wrong = [f"{number:,} left of {name}" for name, number in census.left().items()]
    expected = Sums(messages, messages * (messages + 1) // 2)
    for endpoint, kind in KINDS.items():
        if (found := census.sums.get(kind, Sums())) != expected:
            wrong.append(f"the entities of {endpoint} say {found}, not {expected}")
    for name in ("entities", "largest", "size"):
        before, after = getattr(early, name), getattr(census, name)
        if after > before:
            wrong.append(f"{name} of entities grew from {before:,} to {after:,}")
    return wrong


def _note_document(census: TokenCensus, key: str, document: Document) -> None:
    kind, _, rest = key.partition("/")
    if kind == "token":
        is_live = _TOKEN(document.body)["state"] == "live"
        census.live += is_live
        census.prepared += not is_live
    elif kind in ("entity", "bucket", "message"):
        found = decode_entity(key, document.body)
        census.records += len(found.records)
        census.register += len(found.register)
        if kind == "entity":
            census.note(rest, len(document.body), found.state)
        else:
            census.other += 1
    elif kind == "register":
        census.register += 1
    elif kind == "done":
        census.issued += 1
    elif kind not in LASTING:
        census.other += 1


async def _note_tables(census: TokenCensus, database: Database) -> None:
    known = tables(database.prefix, database.schema)
    named: dict[str, Table] = {
        "live": known.tokens,
        "records": known.records,
        "claims": known.claims,
        "register": known.register,
        "dead": known.dead_letters,
    }
    counted: Counter[str] = Counter()
    async with database.reading() as connection:
        for name, table in named.items():
            counted[name] = await connection.scalar(select(func.count()).select_from(table)) or 0
        rows = (await connection.execute(select(known.entities.c.key, known.entities.c.state))).all()
    for name, number in counted.items():
        setattr(census, name, getattr(census, name) + number)
    for row in rows:
        census.note(row.key, len(row.state), bytes(row.state))
