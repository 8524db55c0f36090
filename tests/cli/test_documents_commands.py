"""The commands at endpoints with tokens, dedup stores, blobs and stores without tables."""

import shutil
from pathlib import Path

import pytest

from tests.cli.terminal import Done, Terminal

pytestmark = pytest.mark.slow

DEPOSIT = ("--type", "Deposit", "--id-from", "owner,amount")
LINES = [{"owner": "ann", "amount": 2}, {"owner": "bob", "amount": 3}]


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, onceonly: Terminal) -> None:  # noqa: ARG001 - it makes the directory
    """Put the program beside the shop."""
    shutil.copy(Path(__file__).with_name("bank_program.py"), tmp_path / "bank.py")


def work(onceonly: Terminal, endpoint: str, *options: str) -> None:
    """Handle what waits, in processes of their own."""
    output, _ = (started := onceonly.start("run", endpoint, "--drain", *options)).communicate(timeout=60)
    assert started.returncode == 0, output


def send(onceonly: Terminal, endpoint: str, *options: str) -> Done:
    """Send both deposits."""
    return onceonly("send", onceonly.write("deposits.jsonl", LINES), "--to", endpoint, *DEPOSIT, *options)


def status(onceonly: Terminal, endpoint: str, *options: str) -> dict[str, object]:
    """Return an endpoint's numbers."""
    (answer,) = onceonly("status", endpoint, "--json", *options).answer
    return dict(answer)


@pytest.mark.parametrize("endpoint", ["bank:bank", "bank:vault"])
def test_messages_from_outside_come_with_tokens(onceonly: Terminal, endpoint: str) -> None:
    """Live from the moment they are sent; gone when they are handled. Tokens are elsewhere, or beside the store."""
    onceonly("schema", "create", endpoint)
    assert send(onceonly, endpoint).code == 0
    assert status(onceonly, endpoint)["live"] == 2
    work(onceonly, endpoint)
    left = status(onceonly, endpoint)
    assert (left["live"], left["dead_letters"], left["waiting"], left["dropped"]) == (0, 0, 0, 0)
    database = f"{endpoint.partition(':')[2]}.db"
    states = onceonly.rows(database, "SELECT state FROM onceonly_entities ORDER BY key")
    assert [bytes(state) for (state,) in states] == [b'{"owner":"ann","balance":2}', b'{"owner":"bob","balance":3}']


@pytest.mark.parametrize("endpoint", ["bank:bank", "bank:vault"])
def test_a_file_that_is_sent_again_is_handled_once(onceonly: Terminal, endpoint: str) -> None:
    """Whether its messages still wait or were handled: their tokens are issued once."""
    onceonly("schema", "create", endpoint)
    for _ in range(2):
        assert send(onceonly, endpoint).code == 0
    assert status(onceonly, endpoint)["live"] == 2
    work(onceonly, endpoint)
    assert send(onceonly, endpoint).code == 0
    assert status(onceonly, endpoint)["live"] == 0
    work(onceonly, endpoint)
    database = f"{endpoint.partition(':')[2]}.db"
    states = onceonly.rows(database, "SELECT state FROM onceonly_entities ORDER BY key")
    assert [bytes(state) for (state,) in states] == [b'{"owner":"ann","balance":2}', b'{"owner":"bob","balance":3}']


@pytest.mark.parametrize("endpoint", ["bank:bank", "bank:vault"])
def test_what_came_without_a_live_token_is_shown_loudly(onceonly: Terminal, endpoint: str) -> None:
    """As when the tokens are lost: the queue is empty, and nothing was done."""
    send(onceonly, endpoint)
    if endpoint == "bank:bank":
        onceonly.change("tokens.db", "DELETE FROM onceonly_documents")
    else:
        onceonly.change("vault.db", "DELETE FROM onceonly_tokens")
    work(onceonly, endpoint)
    shown = onceonly("status", endpoint)
    assert status(onceonly, endpoint)["dropped"] == 2
    assert "dropped 2 messages without a live token" in shown.err
    onceonly("schema", "create", "bank:safe")
    quiet = onceonly("status", "bank:safe")
    assert "dropped" not in quiet.out + quiet.err


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["bank:bank", "bank:vault"])
def test_a_dead_letter_can_be_retried_for_its_token_is_live(onceonly: Terminal, endpoint: str) -> None:
    """A message that failed consumed nothing."""
    (onceonly.folder / "closed").touch()
    send(onceonly, endpoint)
    work(onceonly, endpoint)
    dead = status(onceonly, endpoint)
    assert (dead["dead_letters"], dead["live"]) == (2, 2)
    (onceonly.folder / "closed").unlink()
    assert onceonly("dead", "retry", endpoint, "--all").code == 0
    work(onceonly, endpoint)
    left = status(onceonly, endpoint)
    assert (left["dead_letters"], left["live"], left["dropped"]) == (0, 0, 0)


@pytest.mark.parametrize("endpoint", ["bank:bank", "bank:vault"])
def test_a_purged_letter_leaves_no_token(onceonly: Terminal, endpoint: str) -> None:
    """Nobody will ever ask for it."""
    (onceonly.folder / "closed").touch()
    send(onceonly, endpoint)
    work(onceonly, endpoint)
    assert onceonly("dead", "purge", endpoint, "--all").code == 0
    left = status(onceonly, endpoint)
    assert (left["dead_letters"], left["live"]) == (0, 0)


@pytest.mark.slow
def test_a_store_without_tables_counts_what_is_not_sent(onceonly: Terminal, redis_url: str) -> None:
    """Its records are counted where they are listed; its dead letters are counted, and sent back."""
    (onceonly.folder / "closed").touch()
    options = ("--store", redis_url)
    send(onceonly, "bank:bank")
    work(onceonly, "bank:bank", *options)
    found = status(onceonly, "bank:bank", *options)
    assert (found["records"], found["dead_letters"]) == (0, 2)
    (onceonly.folder / "closed").unlink()
    assert onceonly("dead", "retry", "bank:bank", "--all", *options).code == 0
    work(onceonly, "bank:bank", *options)
    found = status(onceonly, "bank:bank", *options)
    assert (found["dead_letters"], found["waiting"], found["live"]) == (0, 0, 0)


def test_all_that_an_endpoint_uses_is_created_and_checked(onceonly: Terminal) -> None:
    """Tables, tables for documents, and a folder for blobs."""
    expected = [("store", False), ("transport", False), ("documents", False), ("blobs", False)]
    found = onceonly("schema", "check", "bank:safe", "--json")
    assert (found.code, [(each["component"], each["ready"]) for each in found.answer]) == (1, expected)
    for command in ("create", "check"):
        found = onceonly("schema", command, "bank:safe", "--json")
        assert (found.code, [each["ready"] for each in found.answer]) == (0, [True] * 4)
    assert (onceonly.folder / "receipts").is_dir()
    printed = onceonly("schema", "print", "bank:safe")
    assert "onceonly_documents" in printed.out
    assert "no SQL to print" in printed.err


def test_marks_and_open_attempts_are_counted(onceonly: Terminal) -> None:
    """Two messages were handled, and nothing of their attempts is left but the blobs."""
    onceonly("schema", "create", "bank:safe")
    send(onceonly, "bank:safe")
    work(onceonly, "bank:safe")
    found = status(onceonly, "bank:safe")
    assert (found["marks"], found["attempts"], found["records"], found.get("dropped")) == (2, 0, 0, None)
    assert len(list((onceonly.folder / "receipts").rglob("receipt.txt"))) == 2


ASKING = """
from onceonly import DedupStore, Endpoint
done = DedupStore("sqlite:///done.db")
peers = ["http://127.0.0.1:1/x"]
asking = Endpoint("asking", store="sqlite:///asking.db", transport="sqlite:///queue.db", deduplication=done, peers=peers)
def take(order: dict) -> None: ...
asking.handler(type="Order")(take)
"""


def test_open_attempts_at_requests_are_counted_and_their_janitor_shows(onceonly: Terminal) -> None:
    """As with blobs: what waits at another service is unmade by the janitor."""
    (onceonly.folder / "asker.py").write_text(ASKING)
    onceonly("schema", "create", "asker:asking")
    found = status(onceonly, "asker:asking")
    assert found["attempts"] == 0
    assert isinstance(janitor := found["janitor"], dict)
    assert janitor["state"] == "never"


def test_a_missing_folder_is_a_setup_error(onceonly: Terminal) -> None:
    """Told at start, with what to do."""
    send(onceonly, "bank:safe")
    done = onceonly("run", "bank:safe", "--drain")
    assert (done.code, "does not exist" in done.error) == (2, True)


def test_a_service_gets_its_place_by_command(onceonly: Terminal, redis_url: str) -> None:
    """Named by its URL, or as the store of an endpoint."""
    for arguments in (("schema", "create", redis_url), ("schema", "check", redis_url)):
        found = onceonly(*arguments, "--json")
        assert (found.code, [(each["component"], each["ready"]) for each in found.answer]) == (0, [("documents", True)])
    away = onceonly("schema", "check", "redis://127.0.0.1:1/0")
    assert away.code == 1
    assert "cannot reach documents redis://127.0.0.1:1/0" in away.err
