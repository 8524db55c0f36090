"""The places of a run: tables under a prefix of its own, or places for documents that were empty before, and are afterwards."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from typing import Any
from uuid import uuid4

from msgspec import Struct
from sqlalchemy import Engine, event

from benchmarks.tokens.census import TokenCensus, everything, take
from onceonly.assembly import open_database, schemas
from onceonly.assembly.documents import create as create_place
from onceonly.assembly.documents import open_documents
from onceonly.config.location import read_url
from onceonly.model.errors import SetupError
from onceonly.ports.documents import Change, Documents
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database
from onceonly.sql.schema import create, drop
from onceonly.systems import Family

AT_ONCE = 500


class TokensPlaces(Struct):
    """Where the store and the tokens of a run are: URLs, and the same places opened. Tokens in the store have no URL."""

    store: str
    tokens: str
    documents: dict[str, Documents] = {}
    databases: list[Database] = []

    async def census(self) -> TokenCensus:
        """Count what is in them."""
        return await take(self.documents, self.databases)


@asynccontextmanager
async def opened(store: str, tokens: str) -> AsyncIterator[TokensPlaces]:
    """Open the places of a store and of tokens, which are the store's own where nothing is said; leaves them empty.

    Raises SetupError when a place for documents holds something.
    """
    prefix = f"bench_{uuid4().hex[:8]}_"
    named = {url: with_prefix(url, prefix) for url in (store, tokens or store)}
    token_url = named[tokens or store] if tokens or read_url(store).family is not Family.SQL else ""
    places = TokensPlaces(named[store], token_url)
    async with AsyncExitStack() as stack:
        for url in dict.fromkeys(named.values()):
            if read_url(url).family is Family.SQL:
                places.databases.append(await stack.enter_async_context(_tables(url)))
            places.documents[url] = await stack.enter_async_context(_documents(url))
        yield places


def with_prefix(url: str, prefix: str) -> str:
    """Have the tables of a database begin with a prefix; documents elsewhere stay where their URL says."""
    return url if read_url(url).family is not Family.SQL else f"{url}{'&' if '?' in url else '?'}prefix={prefix}"


def with_queue_prefix(url: str) -> str:
    """Have queues begin with a prefix of their own, where there are several behind one URL."""
    is_memory = not read_url(url).is_shared
    return url if is_memory else f"{url}{'&' if '?' in url else '?'}prefix=bench_{uuid4().hex[:8]}_"


@asynccontextmanager
async def counted() -> AsyncIterator[Counter[str]]:
    """Count the SQL statements of this process, for as long as it lasts."""
    heard: Counter[str] = Counter()

    def execute(*_: object) -> None:
        heard["statements"] += 1

    event.listen(Engine, "before_cursor_execute", execute)
    try:
        yield heard
    finally:
        event.remove(Engine, "before_cursor_execute", execute)


@asynccontextmanager
async def watched(places: TokensPlaces) -> AsyncIterator[Counter[str]]:
    """Count statements, and what places for documents are asked to do: calls, and the documents that they name."""
    kinds = {type(each) for each in places.documents.values()}
    async with counted() as heard:
        kept = [(kind, name, getattr(kind, name)) for kind in kinds for name in ("load", "save")]
        for kind, name, method in kept:
            setattr(kind, name, _heard(method, name, heard))
        try:
            yield heard
        finally:
            for kind, name, method in kept:
                setattr(kind, name, method)


def _heard(method: Callable[..., Any], name: str, heard: Counter[str]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: object, items: Any) -> object:
        heard[f"{name} calls"] += 1
        heard[f"{name} documents"] += len(items)
        return await method(self, items)

    return call


@asynccontextmanager
async def _tables(url: str) -> AsyncIterator[Database]:
    async with open_database(url) as database:
        try:
            for schema in schemas():
                await create(database, schema)
            yield database
        finally:
            await drop(database, *schemas())


@asynccontextmanager
async def _documents(url: str) -> AsyncIterator[Documents]:
    if read_url(url).family is Family.DOCUMENTS:
        await create_place(url)
    async with open_documents(url, clock=LIVE.clock) as documents:
        if await documents.keys("", limit=1):
            raise SetupError("this place for documents holds something already; name one that nobody else uses")
        try:
            yield documents
        finally:
            if read_url(url).family is Family.DOCUMENTS:
                await _empty(documents)


async def _empty(documents: Documents) -> None:
    changes = [Change(key=key, body=None, expected=found.version) async for key, found in everything(documents)]
    for start in range(0, len(changes), AT_ONCE):
        await documents.save(changes[start : start + AT_ONCE])
