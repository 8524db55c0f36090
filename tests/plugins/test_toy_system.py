"""A package of somebody else adds a system: endpoints, commands and conformance suites work with it."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onceonly_conformance import (
    ArtifactStoreSuite,
    DocumentDedupSuite,
    DocumentsSuite,
    DocumentTokenSuite,
    DocumentTransactionSuite,
)
from onceonly_conformance.suite import rules
from tests import ROOT
from tests.plugins.packages import TOY, TOY_SQL, Shell

SUITES = (DocumentsSuite, DocumentDedupSuite, DocumentTokenSuite, DocumentTransactionSuite, ArtifactStoreSuite)
BANK = """
from dataclasses import dataclass
from pathlib import Path

from onceonly import Context, DedupStore, Endpoint, History, Reject, Retry, Tokens

PLACE = (Path(__file__).parent / "bank.toy").as_uri().replace("file:", "toy:")


@dataclass
class Deposit:
    account_id: str
    amount: int


@dataclass
class Account:
    account_id: str
    balance: int = 0


bank = Endpoint(
    "bank", store=PLACE, blobs=PLACE, transport="sqlite:///queue.db", deduplication=DEDUPLICATION, dead_letters=PLACE
)


@bank.handler(entity=Account, key="account_id")
async def deposit(message: Deposit, account: Account, context: Context) -> None:
    if message.amount < 0:
        raise Reject("not a deposit")
    account.balance += message.amount
    await context.blobs.create("receipt.txt", b"%d" % message.amount)
"""
DEPOSITS = [
    {"id": "d1", "account_id": "A", "amount": 5},
    {"id": "d2", "account_id": "A", "amount": 7},
    {"id": "d3", "account_id": "A", "amount": -1},
]


@pytest.fixture(name="place")
def url_of_the_file(shell: Shell) -> str:
    """Name the place of the program as it does."""
    return (shell.folder / "bank.toy").as_uri().replace("file:", "toy:")


def write_program(folder: Path, deduplication: str) -> None:
    """Write the program, and the file of deposits."""
    (folder / "bank.py").write_text(BANK.replace("DEDUPLICATION", deduplication))
    (folder / "deposits.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in DEPOSITS))


def read(folder: Path, statement: str) -> list[bytes]:
    """Look into the toy's file."""
    with closing(sqlite3.connect(folder / "bank.toy")) as connection:
        return [value for (value,) in connection.execute(statement)]


def send(shell: Shell) -> None:
    """Send the deposits."""
    shell.onceonly("send", "deposits.jsonl", "--to", "bank:bank", "--type", "Deposit", "--id-from", "id")


def components(shell: Shell, place: str) -> set[str]:
    """Return what `schema check` finds at a place; all of it must be ready."""
    found = json.loads(shell.onceonly("schema", "check", place, "--json"))
    assert all(each["ready"] for each in found)
    return {each["component"] for each in found}


def handled(folder: Path) -> tuple[int, list[bytes]]:
    """Return the balance and the receipts that the handler left in the toy's file."""
    (account,) = read(folder, "SELECT body FROM documents WHERE key = CAST('entity/Account/A' AS BLOB)")
    return json.loads(account)["state"]["balance"], sorted(read(folder, "SELECT data FROM artifacts"))


@pytest.mark.slow
def test_an_endpoint_on_the_toy_handles_messages_once(shell: Shell, place: str) -> None:
    """What was sent twice changes its entity once, and creates one blob. Commands show what there is."""
    write_program(shell.folder, "History()")
    assert "schema create" in shell.onceonly("schema", "check", place, expected=1)
    shell.onceonly("schema", "create", place)
    assert components(shell, place) == {"documents"}
    send(shell)
    send(shell)
    shell.onceonly("run", "bank:bank", "--drain")
    assert handled(shell.folder) == (12, [b"5", b"7"])
    (letter,) = json.loads(shell.onceonly("dead", "list", "bank:bank", "--json"))
    assert "not a deposit" in letter["reason"]
    (status,) = json.loads(shell.onceonly("status", "bank:bank", "--json"))
    assert (status["waiting"], status["dead_letters"]) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("deduplication", ["DedupStore(PLACE)", "Tokens(PLACE)"])
def test_marks_and_tokens_are_kept_in_the_toy(shell: Shell, deduplication: str) -> None:
    """Built on its documents, as on those of any other system."""
    write_program(shell.folder, deduplication)
    shell.onceonly("schema", "create", "bank:bank")
    assert components(shell, "bank:bank") == {"documents", "blobs", "transport"}
    send(shell)
    shell.onceonly("run", "bank:bank", "--drain")
    assert handled(shell.folder) == (12, [b"5", b"7"])
    marks = read(shell.folder, "SELECT key FROM documents WHERE substr(key, 1, 5) = CAST('done/' AS BLOB)")
    assert len(marks) == (2 if "DedupStore" in deduplication else 3)  # the messages that were handled, or those of the file


@pytest.mark.slow
def test_the_toy_passes_the_conformance_suites(shell: Shell) -> None:
    """Run as its author would, by pytest."""
    printed = shell.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(TOY / "pyproject.toml"), str(TOY / "tests"))
    assert f"{sum(len(rules(suite)) for suite in SUITES)} passed" in printed
    assert re.search(r"\d+ (failed|error)", printed) is None


def parts_of_the_page(package: str) -> Iterator[tuple[str, str]]:
    """Return the blocks of docs/how-to/systems.md that name a file of a package in their first line, without that line."""
    page = (ROOT / "docs" / "how-to" / "systems.md").read_text(encoding="utf-8")
    for block in page.split("```")[1::2]:
        _language, first, *lines = block.splitlines()
        if first.startswith(f"# {package}/"):
            yield first.removeprefix(f"# {package}/"), "\n".join(lines)


@pytest.mark.parametrize(
    ("folder", "files"),
    [
        (TOY, {"pyproject.toml", "src/onceonly_toy/__init__.py", "tests/test_toy.py"}),
        (TOY_SQL, {"src/onceonly_toysql/__init__.py", "src/onceonly_toysql/engine.py", "tests/test_toysql.py"}),
    ],
    ids=["toy", "toysql"],
)
def test_the_page_shows_a_package_as_it_is(folder: Path, files: set[str]) -> None:
    """Every block is a part of the file that it names."""
    shown = dict(parts_of_the_page(f"onceonly-{folder.name}"))
    assert set(shown) == files
    for name, text in shown.items():
        assert text.strip() in (folder / name).read_text(encoding="utf-8"), name
