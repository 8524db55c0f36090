"""The recipes run: each program does what its page says."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import text

from onceonly import testing
from tests import ROOT
from tests.docs.test_documentation import README, run_shell, snippet
from tests.docs.test_web import CLIENT

PAGE = ROOT / "docs" / "how-to" / "recipes.md"
LINES = 40
"""The longest program. A recipe is read in a minute."""


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a recipe as a user's module."""
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(snippet(PAGE, f"# {name}.py\n"), name, "exec"), made.__dict__)  # noqa: S102 - the page's program
    return made


@pytest.fixture(name="folder")
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder that has the README's program."""
    (tmp_path / "shop.py").write_text(snippet(README, "# shop.py"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_recipes_are_short() -> None:
    """Blank lines do not count."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [program for program in programs if len([line for line in program.splitlines() if line]) > LINES] == []


def test_a_request_that_is_repeated_takes_effect_once(folder: Path) -> None:
    """Two equal answers and one row."""
    (folder / "orders_api.py").write_text(snippet(PAGE, "# orders_api.py"))
    (folder / "client.py").write_text(CLIENT)
    printed = run_shell(folder, f"{sys.executable} client.py orders_api").stdout
    order = "{'order_id': 'A-4', 'total': 9}"
    assert printed.splitlines() == [f"201 {order} first", f"201 {order} true", "1 row"]


@pytest.mark.usefixtures("folder")
async def test_other_programs_get_a_command_and_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the command sends nothing more."""
    bills = module("bills", monkeypatch)
    async with testing.run(bills.bills) as t:
        async with t.session() as session:
            await session.execute(text("CREATE TABLE bills (id TEXT PRIMARY KEY)"))
        await t.deliver(bills.BillOrder("A-1"), copies=2)
        assert t.sent == [bills.PrintInvoice("A-1"), bills.OrderBilled("A-1")]
        assert [each.to for each in t.sent] == ["queue:Printer", "exchange:accounting#order.billed"]


@pytest.mark.usefixtures("folder")
async def test_a_payment_waits_is_made_or_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed till delays it without a failure. A wrong amount is a dead letter at once. Other failures are ten attempts."""
    payments = module("payments", monkeypatch)
    async with testing.run(payments.payments, raise_failures=False) as t:
        async with t.session() as session:
            await session.execute(text("CREATE TABLE paid (id TEXT PRIMARY KEY, amount INTEGER)"))
            await session.execute(text("CREATE TABLE till (closed BOOLEAN)"))
            await session.execute(text("INSERT INTO till VALUES (TRUE)"))
        await t.deliver(payments.Pay("A-1", 30))
        assert (list(t.failures), list(t.dead_letters)) == ([], [])
        async with t.session() as session:
            assert await session.scalar(text("SELECT count(*) FROM paid")) == 0
            await session.execute(text("UPDATE till SET closed = FALSE"))
        t.clock.advance(60)
        await t.settle()
        await t.deliver(payments.Pay("A-2", 0))
        assert [letter.reason for letter in t.dead_letters] == ["the amount is 0"]
        await t.deliver(payments.Pay("A-1", 50))
        while len(t.dead_letters) < 2:
            t.clock.advance(3600)
            await t.settle()
        assert len(t.failures) == 10
        async with t.session() as session:
            assert (await session.execute(text("SELECT * FROM paid"))).all() == [("A-1", 30)]


@pytest.mark.slow
def test_a_command_is_answered(folder: Path) -> None:
    """Sent twice, shipped once."""
    (folder / "shipping.py").write_text(snippet(PAGE, "# shipping.py"))
    (folder / "order.jsonl").write_text('{"order_id": "A-1"}\n')
    send = "onceonly send order.jsonl --to shipping:sales --type Sell --id-from order_id"
    run = "onceonly run shipping:sales shipping:shipping --drain"
    printed = run_shell(
        folder, f"onceonly topology create shipping:sales shipping:shipping\n{send}\n{send}\n{run} || {run}"
    ).stdout
    assert printed.splitlines().count("shipped A-1") == 1


def test_the_test_of_a_handler_passes(folder: Path) -> None:
    """And with it the seat."""
    for name in ("seats", "test_seats"):
        (folder / f"{name}.py").write_text(snippet(PAGE, f"# {name}.py"))
    assert "1 passed" in run_shell(folder, f"{sys.executable} -m pytest -q test_seats.py").stdout


@pytest.mark.usefixtures("folder")
async def test_a_batch_is_saved_and_alarms_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two readings one is too high."""
    readings = module("readings", monkeypatch)
    async with testing.run(readings.readings) as t:
        async with t.session() as session:
            await session.execute(text("CREATE TABLE readings (sensor TEXT, value REAL)"))
        await t.deliver_batch([readings.Reading("a", 20.0), readings.Reading("b", 95.0)])
        assert t.sent == [readings.Alarm("b")]
        async with t.session() as session:
            assert await session.scalar(text("SELECT count(*) FROM readings")) == 2


@pytest.mark.slow
def test_the_job_of_a_day_has_one_answer(folder: Path) -> None:
    """Whatever was added since."""
    (folder / "daily.py").write_text(snippet(PAGE, "# daily.py"))
    order = 'echo \'{"order_id": "A-%s", "total": 30}\' > orders.jsonl'
    send = "onceonly send orders.jsonl --to shop:shop --type PlaceOrder --id-from order_id\nonceonly run shop:shop --drain"
    job = f"{sys.executable} daily.py"
    printed = run_shell(
        folder, f"{order % 1}\n{send}\n{job} 2026-11-29\n{order % 2}\n{send}\n{job} 2026-11-29\n{job} 2026-11-30"
    ).stdout
    assert [line for line in printed.splitlines() if "reported" in line] == [
        "1 orders reported",
        "1 orders reported",
        "2 orders reported",
    ]
