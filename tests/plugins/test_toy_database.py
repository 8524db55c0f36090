"""A package of somebody else adds a SQL database, by public names alone. tests/docs/test_reference.py checks its imports."""

import json
import re
import sqlite3
from contextlib import closing

import pytest

from onceonly_conformance import sql as sql_suites
from onceonly_conformance.sql import (
    SqlDeadLetterSuite,
    SqlDocumentsSuite,
    SqlForgetfulStoreSuite,
    SqlRegisterSuite,
    SqlRingSuite,
    SqlStoreSuite,
    SqlTransactionSuite,
    SqlTransportSuite,
)
from onceonly_conformance.suite import rules
from tests.plugins.packages import TOY_SQL, Shell

SUITES = {
    "TestStore": SqlStoreSuite,
    "TestForgetfulStore": SqlForgetfulStoreSuite,
    "TestRing": SqlRingSuite,
    "TestRegister": SqlRegisterSuite,
    "TestTransport": SqlTransportSuite,
    "TestDeadLetters": SqlDeadLetterSuite,
    "TestTransactions": SqlTransactionSuite,
    "TestDocuments": SqlDocumentsSuite,
}
WAIVED = {"TestForgetfulStore", "TestRing"}
"""One rule each: by the suite, and by the toy."""
SHOP = """
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, message

PLACE = f"toysql:///{Path(__file__).parent / 'shop.db'}?lease=10"


@message("OrderPlaced")
@dataclass
class OrderPlaced:
    order_id: str


@dataclass
class PlaceOrder:
    order_id: str


shop = Endpoint("shop", store=PLACE, transport=PLACE)
mail = Endpoint("mail", store=PLACE, transport=PLACE)


@shop.handler
async def place(message: PlaceOrder, session: AsyncSession, context: Context) -> None:
    await session.execute(text("CREATE TABLE IF NOT EXISTS orders (order_id TEXT)"))
    await session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": message.order_id})
    context.publish(OrderPlaced(message.order_id))


@mail.handler
async def send(message: OrderPlaced, session: AsyncSession) -> None:
    await session.execute(text("CREATE TABLE IF NOT EXISTS mails (order_id TEXT)"))
    await session.execute(text("INSERT INTO mails VALUES (:id)"), {"id": message.order_id})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
@pytest.mark.repeated
def test_the_toy_database_passes_a_conformance_suite(sql_shell: Shell, name: str) -> None:
    """Run as its author would, by pytest."""
    options = ["-q", "-p", "no:cacheprovider", "-c", str(TOY_SQL / "pyproject.toml")]
    printed = sql_shell.run("-m", "pytest", *options, f"{TOY_SQL}/tests/test_toysql.py::{name}")
    kept = len(rules(SUITES[name])) - (name in WAIVED)
    assert f"{kept} passed" in printed
    assert re.search(r"\d+ (failed|error)", printed) is None


def test_every_suite_is_bound() -> None:
    """Those that the reference has."""
    assert {suite.__name__ for suite in SUITES.values()} == set(sql_suites.__all__) - {"SqlSuite"}


@pytest.mark.slow
def test_endpoints_on_the_toy_database_handle_messages_once(sql_shell: Shell) -> None:
    """The store and the queue are in the toy. What was sent twice is handled once, and its event arrives once."""
    (sql_shell.folder / "shop.py").write_text(SHOP)
    (sql_shell.folder / "orders.jsonl").write_text('{"order_id": "A"}\n{"order_id": "B"}\n')
    sql_shell.onceonly("schema", "create", "shop:shop")
    sql_shell.onceonly("topology", "create", "shop:shop", "shop:mail")
    for _ in range(2):
        sql_shell.onceonly("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")
    sql_shell.onceonly("run", "shop:shop", "shop:mail", "--drain")
    with closing(sqlite3.connect(sql_shell.folder / "shop.db")) as connection:
        for table in ("orders", "mails"):
            assert sorted(connection.execute(f"SELECT order_id FROM {table}")) == [("A",), ("B",)]  # noqa: S608 - ours
    statuses = json.loads(sql_shell.onceonly("status", "shop:shop", "shop:mail", "--json"))
    assert [(each["waiting"], each["dead_letters"]) for each in statuses] == [(0, 0), (0, 0)]


def test_an_engine_of_the_toy_database_is_a_store(sql_shell: Shell) -> None:
    """The user's own, found by the name of its SQLAlchemy dialect."""
    program = """
import asyncio
from dataclasses import dataclass
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from onceonly import Endpoint, testing

@dataclass
class PlaceOrder:
    order_id: str

async def main():
    engine = create_async_engine("toysql:///shop.db")
    shop = Endpoint("shop", store=engine, transport="memory://shop")
    @shop.handler
    async def place(message: PlaceOrder, session: AsyncSession) -> None:
        await session.execute(text("CREATE TABLE orders (order_id TEXT)"))
    async with testing.run(shop, own_store=True) as t:
        report = await t.deliver(PlaceOrder("A"), copies=2)
        print(report.handled, report.known)
    await engine.dispose()

asyncio.run(main())
"""
    assert sql_shell.python(program) == "1 1\n"


def test_tokens_in_the_file_of_the_store_are_refused(sql_shell: Shell) -> None:
    """By whatever name: the unit that prepares them has the file's write lock."""
    program = """
import asyncio
from onceonly import Endpoint, SetupError, Tokens

async def main():
    shop = Endpoint("shop", store="toysql:///shop.db", transport="memory://shop", deduplication=Tokens("toysql:///./shop.db"))
    @shop.handler(type="x")
    async def handle(message: dict) -> None: ...
    async with shop.opened():
        pass

try:
    asyncio.run(main())
except SetupError as error:
    print(error)
"""
    assert "it is the SQLite file of the store" in sql_shell.python(program)


def test_a_database_without_a_clock_is_an_error_that_names_it(sql_shell: Shell) -> None:
    """Not one of SQLAlchemy's about a missing compiler."""
    program = """
from sqlalchemy import select
from sqlalchemy.dialects import mssql
from onceonly import SetupError
from onceonly.sql.dialect import DatabaseNow
try:
    select(DatabaseNow()).compile(dialect=mssql.dialect())
except SetupError as error:
    print(error)
"""
    assert "mssql databases have no clock: register DatabaseNow" in sql_shell.python(program)
