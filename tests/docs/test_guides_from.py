"""The guides for those who come from elsewhere: the code after the move works once, and the code before it can be read."""

import ast
import asyncio
import re
import sqlite3
import sys
from pathlib import Path
from types import ModuleType

import pytest
from faststream.rabbit import TestRabbitBroker
from sqlalchemy import text

from onceonly import testing
from tests import ROOT
from tests.docs.test_documentation import run_shell, snippet

HOW_TO = ROOT / "docs" / "how-to"


def module(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a guide's program as a user's module."""
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(snippet(HOW_TO / page, f"# {name}.py\n"), name, "exec"), made.__dict__)  # noqa: S102 - the guide's program
    return made


@pytest.mark.parametrize("page", sorted(HOW_TO.glob("from-*.md")), ids=lambda page: page.stem)
def test_every_program_can_be_read(page: Path) -> None:
    """Also those that need packages which are not installed here."""
    programs = re.findall(r"^( *)```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for indent, program in programs:
        lines = [line.removeprefix(indent) for line in program.splitlines()]
        body = "\n".join(f"    {line}" for line in lines)
        ast.parse(f"async def block():\n{body}\n")


async def test_a_task_of_celery_became_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One invoice, printed once, for a message that comes twice."""
    monkeypatch.chdir(tmp_path)
    billing = module("from-celery.md", "billing", monkeypatch)
    async with testing.run(billing.billing) as kit:
        message = kit.message(billing.SendInvoice("A-1", 30))
        await kit.deliver(message)
        await kit.deliver(message)
        async with kit.session() as session:
            assert await session.scalar(text("SELECT sum(total) FROM invoices")) == 30
        assert kit.sent == [billing.PrintInvoice("A-1")]


async def test_a_subscriber_of_faststream_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the guide, in files and with FastStream's TestBroker: one row for a message that comes twice."""
    monkeypatch.chdir(tmp_path)
    program = snippet(HOW_TO / "from-faststream.md", "# kept.py\n")
    for server, file in (
        ("postgresql://localhost/shop", "sqlite:///shop.db"),
        ('transport="amqp://localhost/"', 'transport="sqlite:///queue.db", metadata=Base.metadata'),
    ):
        assert server in program
        program = program.replace(server, file)
    kept = ModuleType("kept")
    monkeypatch.setitem(sys.modules, "kept", kept)
    exec(compile(program, "kept", "exec"), kept.__dict__)  # noqa: S102 - the guide's program
    async with TestRabbitBroker(kept.broker):
        for _ in range(2):
            await kept.broker.publish(kept.PlaceOrder(order_id="A-1"), "orders")
    async with kept.shop.transaction() as tx:
        assert await tx.sql.scalar(text("SELECT count(*) FROM orders")) == 1


async def test_a_subscriber_of_faststream_became_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One order and one event."""
    monkeypatch.chdir(tmp_path)
    orders = module("from-faststream.md", "orders", monkeypatch)
    async with testing.run(orders.orders) as kit:
        message = kit.message(orders.PlaceOrder(order_id="A-1", total=30))
        await kit.deliver(message)
        await kit.deliver(message)
        async with kit.session() as session:
            assert await session.scalar(text("SELECT sum(total) FROM orders")) == 30
        assert kit.sent == [orders.OrderPlaced(order_id="A-1")]


@pytest.mark.parametrize(("known", "rows"), [("m-1", 0), ("m-2", 1)], ids=["handled before", "new"])
async def test_what_the_old_consumer_handled_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str, rows: int
) -> None:
    """By the middleware of the guide."""
    monkeypatch.chdir(tmp_path)
    orders = module("from-an-outbox.md", "orders", monkeypatch)
    async with testing.run(orders.orders) as kit:
        async with kit.session() as session:
            await session.execute(text("CREATE TABLE processed_messages (message_id TEXT)"))
            await session.execute(text("CREATE TABLE orders (id TEXT, total INTEGER)"))
            await session.execute(text("INSERT INTO processed_messages VALUES (:id)"), {"id": known})
        await kit.deliver(kit.message(orders.PlaceOrder("A-1", 30), id="m-1"))
        async with kit.session() as session:
            assert await session.scalar(text("SELECT count(*) FROM orders")) == rows
        assert len(kit.sent) == rows


def balances(folder: Path) -> tuple[int, int]:
    """Return what both databases have."""
    found = []
    for name in ("checking", "savings"):
        connection = sqlite3.connect(folder / f"{name}.db")
        found.append(connection.execute("SELECT balance FROM accounts").fetchone()[0])
        connection.close()
    return found[0], found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "left"), [("S", (70, 30)), ("closed", (100, 0))], ids=["an open account", "a closed account"]
)
async def test_a_transfer_takes_effect_once_in_both_databases_or_is_undone(
    tmp_path: Path, target: str, left: tuple[int, int]
) -> None:
    """The program and the command of the guide, with a transfer that is sent twice."""
    (tmp_path / "transfer.py").write_text(snippet(HOW_TO / "from-msdtc.md", "# transfer.py"))
    for name, row in (("checking", ("C", 100)), ("savings", ("S", 0))):
        connection = sqlite3.connect(tmp_path / f"{name}.db")
        connection.execute("CREATE TABLE accounts (id TEXT, balance INTEGER)")
        connection.execute("INSERT INTO accounts VALUES (?, ?)", row)
        connection.commit()
        connection.close()
    order = f'{{"transfer_id": "T-1", "source": "C", "target": "{target}", "amount": 30}}'
    send = "onceonly send orders.jsonl --to transfer:checking --type Transfer --id-from transfer_id"
    run = "onceonly run transfer:checking transfer:savings --drain"
    await asyncio.to_thread(run_shell, tmp_path, f"echo '{order}' > orders.jsonl\n{send}\n{send}\n{run}")
    assert balances(tmp_path) == left
