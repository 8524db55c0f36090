"""The commands, from one end to the other, as a person or a script uses them."""

import io
import json
import sqlite3
import sys
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.cli.terminal import Terminal
from tests.servers.available import POSTGRESQL, need

ORDERS = [{"order_id": "A-1", "total": 30}, {"order_id": "A-2", "total": 5}]
SEND = ("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")

WORKS = """
from dataclasses import dataclass
from pathlib import Path
from onceonly import Context, Endpoint, Retry

@dataclass
class Go:
    number: int

@dataclass
class Bill:
    number: int

works = Endpoint("works", store="sqlite:///w.db", transport="sqlite:///q.db", retry=Retry(immediate=0, delayed=0))
billing = Endpoint("billing", store="sqlite:///w.db", transport="sqlite:///q.db")

def log(text):
    with Path("log").open("a") as file:
        file.write(text + "\\n")

@works.handler
async def go(message: Go, context: Context) -> None:
    log(f"worked {message.number}")
    context.send(Bill(message.number), to="billing")

@billing.handler
async def bill(message: Bill) -> None:
    log(f"billed {message.number}")
"""


def test_what_is_sent_twice_is_handled_once(onceonly: Terminal) -> None:
    """Send, send again, drain, look: two rows."""
    onceonly("schema", "create", "shop:shop")
    onceonly.write("orders.jsonl", ORDERS)
    for _ in range(2):
        done = onceonly(*SEND)
        assert (done.code, done.out) == (0, "2 sent to shop\n")
    before = {"waiting": 4, "held": 0, "delayed": 0, "records": 0, "late": 0, "oldest": None, "dead_letters": 0}
    state = {"late_buckets": 0, "janitor": {"state": "never", "age": None, "troubles": [], "tasks": {}}, "processes": []}
    state["retention"] = "not stored yet (code: 7 d)"
    assert onceonly("status", "shop:shop", "--json").answer == [{"endpoint": "shop"} | before | state]
    drained = onceonly("run", "shop:shop", "shop:mailer", "--drain")
    assert (drained.code, drained.out) == (0, "")
    assert "drained: 4 handled, 2 known" in drained.err
    assert onceonly.rows("shop.db", "SELECT id, total FROM orders ORDER BY id") == [("A-1", 30), ("A-2", 5)]
    table = onceonly("status", "shop:shop", "shop:mailer")
    assert (table.code, table.err) == (0, "")
    assert "mailer" in table.out


def test_cloudevents_and_events_from_standard_input(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event goes to whoever subscribed; one document on standard input is enough."""
    onceonly("run", "shop:mailer", "--drain")
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "OrderPlaced", "data": {"order_id": "A-1"}}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(event, indent=2).encode())))
    done = onceonly("send", "--event", "--transport", "sqlite:///queue.db", "--json")
    assert (done.code, done.answer) == (0, {"sent": 1, "refused": [], "unknown": 0, "error": None})
    assert onceonly("status", "shop:mailer", "--json").answer[0]["waiting"] == 1


def test_a_line_without_an_id_is_named_and_what_came_before_it_is_counted(onceonly: Terminal) -> None:
    """Nothing is dropped silently, and sending the corrected file again is safe."""
    onceonly.write("orders.jsonl", [*ORDERS, {"total": 1}, {"order_id": "A-4", "total": 1}])
    done = onceonly(*SEND)
    assert (done.code, done.out) == (1, "2 sent to shop\n")
    assert "line 3: the field 'order_id' of --id-from is missing" in done.error
    assert onceonly(*SEND, "--json").answer["error"].startswith("line 3")


def test_a_type_that_the_endpoint_does_not_handle_is_refused(onceonly: Terminal) -> None:
    """Before anything is sent where --type says so, each for itself where CloudEvents do; not with --any-type."""
    onceonly.write("orders.jsonl", [{"order_id": "a", "total": 1}])
    wrong = ("send", "orders.jsonl", "--to", "shop:shop", "--type", "Order", "--id-from", "order_id")
    refused = onceonly(*wrong)
    assert (refused.code, refused.out) == (2, "")
    handled = "endpoint 'shop' has no handler for 'Order': it handles PlaceOrder. Correct the type, or set --any-type"
    assert handled in refused.error
    assert onceonly(*wrong, "--any-type", "--json").answer["sent"] == 1
    common = {"specversion": "1.0", "source": "web", "data": {}}
    onceonly.write("events.jsonl", [common | {"id": name, "type": name} for name in ("PlaceOrder", "Order")])
    some = onceonly("send", "events.jsonl", "--to", "shop:shop", "--json")
    assert (some.code, some.answer["sent"]) == (1, 1)
    assert [each["id"] for each in some.answer["refused"]] == ["Order"]
    assert handled in some.answer["refused"][0]["reason"]
    by_name = ("send", "events.jsonl", "--to", "shop", "--transport", "sqlite:///queue.db", "--json")
    assert onceonly(*by_name).answer["sent"] == 2


def test_messages_to_an_endpoint_nobody_knows_are_refused(onceonly: Terminal) -> None:
    """Exit code 1, with the reason."""
    onceonly.write("orders.jsonl", ORDERS)
    to = ("--transport", "sqlite:///queue.db", "--to", "shpo", "--type", "PlaceOrder", "--id-from", "order_id")
    done = onceonly("send", "orders.jsonl", *to)
    assert done.code == 1
    assert "endpoint 'shpo' has no queue" in done.error
    refused = onceonly("send", "orders.jsonl", *to, "--json").answer["refused"]
    assert [each["id"] for each in refused] == ["A-1", "A-2"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "shop"), "write module:attribute"),
        (("run", "nowhere:shop"), "module 'nowhere' was not found"),
        (("run", "shop:shpo"), "it has shop:mailer, shop:shop"),
        (("run", "shop:not_an_endpoint"), "is not an Endpoint"),
        (("run", "shop:shop", "shop:shop"), "two endpoints are named shop"),
        (("run", "broken:shop"), "ZeroDivisionError: division by zero (broken.py, line 2)"),
        (("run", "shop:shop", "--store", "nosql://x"), "nosql"),
        (("run", "shop:shop", "--store", "postgresql://u:secret@h/d?schema=Bad"), "use a lower-case letter"),
        (("run", "shop:shop", "--store", "sqlite:///no/such/place.db"), "does not exist"),
        (("run", "shop:shop", "--drain", "-p", "2"), "--drain runs in one process"),
        (("send", "orders.jsonl"), "--to ENDPOINT"),
        (("send", "orders.jsonl", "--to", "shop"), "--transport URL"),
        (("send", "orders.jsonl", "--to", "Shop!", "--transport", "sqlite:///queue.db"), "an endpoint name is"),
        (("send", "missing.jsonl", "--to", "shop:shop"), "file missing.jsonl does not exist"),
        (("dead", "retry", "shop:shop"), "no dead letters selected"),
        (("dead", "retry", "sqlite:///shop.db", "--all"), "--transport URL"),
        (("dead", "show", "shop:shop", "123"), "database file sqlite:///shop.db does not exist"),
        (("dead", "list", "sqlite:///shop.db"), "database file sqlite:///shop.db does not exist"),
        (("status", "shop:shop"), "database file sqlite:///queue.db does not exist"),
        (("schema", "create", "memory://x"), "the store memory://x has no tables"),
        (("schema", "create", "amqp://me:secret@host/"), "the store amqp://host/ has no tables"),
        (("schema", "check", "shop:shop", "--transport", "amqp://host/", "--component", "transport"), "host/ has no tables"),
    ],
)
def test_a_wrong_set_up_is_one_clear_error(onceonly: Terminal, arguments: tuple[str, ...], complaint: str) -> None:
    """Exit code 2, one error that says what to do, nothing on standard output, no traceback, no password."""
    (onceonly.folder / "broken.py").write_text("# a program with a fault\n1 / 0\n")
    done = onceonly(*arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err
    assert done.error
    assert "secret" not in done.err


def test_commands_that_only_look_make_no_file_and_no_tables(onceonly: Terminal) -> None:
    """A mistyped name is an error, not an empty database, and it says what makes one."""
    assert onceonly("dead", "list", "shop:shop").code == 2
    assert onceonly("status", "shop:shop").code == 2
    assert onceonly("schema", "check", "shop:shop").code == 1
    assert not list(onceonly.folder.glob("*.db"))
    (onceonly.folder / "shop.db").touch()
    onceonly("topology", "create", "shop:shop")
    for command in (("dead", "list"), ("status",)):
        done = onceonly(*command, "shop:shop")
        assert (done.code, done.out) == (2, "")
        assert "the tables of the store do not exist: run `onceonly schema create shop:shop`" in done.error
    assert onceonly.rows("shop.db", "SELECT count(*) FROM sqlite_master") == [(0,)]


@pytest.mark.parametrize("store", ["", "gone.db"])
def test_the_status_of_a_store_that_is_not_there_is_no_answer(onceonly: Terminal, store: str) -> None:
    """Zeros would be read as "all is well". The queue may be there, as after a send, and the store an engine."""
    if store:
        engine = f'__import__("sqlalchemy.ext.asyncio").ext.asyncio.create_async_engine("sqlite+aiosqlite:///{store}")'
        change(onceonly, f"store={engine}")
    onceonly("topology", "create", "shop:shop")
    done = onceonly("status", "shop:shop", "--json")
    assert (done.code, done.out) == (2, "")
    where = store or "sqlite:///shop.db"
    advice = "`onceonly schema create shop:shop` creates it, and so does the first run"
    assert done.error == f"error: endpoint 'shop': database file {where} does not exist: {advice}"
    assert [path.name for path in onceonly.folder.glob("*.db")] == ["queue.db"]


def test_the_database_that_a_server_does_not_have_is_named(onceonly: Terminal) -> None:
    """By its URL, without the password."""
    server = need(POSTGRESQL)
    name = f"nowhere_{uuid4().hex[:8]}"
    url = urlsplit(server)
    place = f"{url.hostname}{f':{url.port}' if url.port else ''}/{name}"
    user = url.username or "root"
    done = onceonly("status", "shop:shop", "--transport", f"postgresql://{user}:secret@{place}")
    assert (done.code, done.out) == (2, "")
    assert (
        f"cannot use transport postgresql://{place}: PostgreSQL: this database does not exist on the server: create it"
        in done.error
    )
    assert "secret" not in done.err


def test_an_endpoint_with_an_invalid_handler_has_a_status(onceonly: Terminal) -> None:
    """The numbers of its queue and its store, and what is wrong with the handler."""
    onceonly("topology", "create", "shop:shop")
    onceonly("schema", "create", "shop:shop")
    onceonly("send", onceonly.write("orders.jsonl", [{"order_id": "a", "total": 1}]), "--to", "shop:shop", *SEND[4:])
    with (onceonly.folder / "shop.py").open("a") as program:
        program.write("\n\n@shop.handler\nasync def unready(placed: OrderPlaced, amount: int) -> None: ...\n")
    (status,) = onceonly("status", "shop:shop", "--json").answer
    assert (status["waiting"], status["records"], status["dead_letters"]) == (1, 0, 0)
    assert status["problem"].startswith("endpoint 'shop' cannot start:\n  * handler unready: amount: int cannot be injected")
    shown = onceonly("status", "shop:shop")
    assert shown.code == 0
    assert "warning: endpoint 'shop' cannot start:" in shown.err


def test_of_several_endpoints_the_one_whose_store_is_missing_is_named(onceonly: Terminal) -> None:
    """So that the command which is advised is the one that helps."""
    onceonly("schema", "create", "shop:shop")
    done = onceonly("status", "shop:shop", "shop:mailer")
    assert done.error.startswith("error: endpoint 'mailer': database file sqlite:///mail.db does not exist: ")
    assert "`onceonly schema create shop:mailer`" in done.error


def test_the_tables_of_several_endpoints_are_created_in_one_command(onceonly: Terminal) -> None:
    """Those that two endpoints share are listed once."""
    done = onceonly("schema", "create", "shop:shop", "shop:mailer", "--json")
    found = [(each["component"], each["database"]) for each in done.answer]
    assert len(found) == len(set(found))
    assert {("store", "sqlite:///shop.db"), ("store", "sqlite:///mail.db")} <= set(found)
    assert onceonly("schema", "check", "shop:shop", "shop:mailer").code == 0


def test_an_endpoint_that_only_sends_has_a_status_and_needs_no_queue(onceonly: Terminal) -> None:
    """It runs in the application that sends, so nothing is wrong with it."""
    with (onceonly.folder / "shop.py").open("a") as program:
        program.write('\n\nweb = Endpoint("web", store="sqlite:///shop.db", transport="sqlite:///queue.db")\n')
    onceonly("schema", "create", "shop:shop")
    created = onceonly("topology", "create", "shop:web", "shop:shop")
    assert (created.code, created.err) == (0, "web: has no handlers, so it needs no queue\n")
    status = onceonly("status", "shop:web")
    assert (status.code, status.err) == (0, "")
    refused = onceonly("run", "shop:web")
    assert refused.code == 2
    assert "If it only sends, run `onceonly relay` for it" in refused.err


def test_where_events_go_is_shown(onceonly: Terminal) -> None:
    """By `topology` and `status`: other programs receive these events, and nothing is declared for them."""
    with (onceonly.folder / "shop.py").open("a") as program:
        program.write(
            "\n\nfrom onceonly import Exchange, Queue\n"
            'rule = {"OrderPlaced": Exchange("orders", "placed"), "OrderBilled": Queue("Sales")}\n'
            'web = Endpoint("web", store="sqlite:///shop.db", transport="amqp://localhost", events=rule)\n'
            "web.handler(place_order)\n"
            'app = Endpoint("app", store="sqlite:///shop.db", transport="sqlite:///queue.db", events=lambda type_: None)\n'
        )
    printed = onceonly("topology", "print", "shop:web", "shop:app")
    for line in ("OrderBilled", "queue:Sales", "exchange:orders#placed", "a function decides"):
        assert line in printed.out
    expected = {"OrderBilled": "queue:Sales", "OrderPlaced": "exchange:orders#placed"}
    assert onceonly("topology", "print", "shop:web", "--json").answer[0]["destinations"] == expected
    onceonly("schema", "create", "shop:shop")
    assert "a function decides" in onceonly("status", "shop:app").out
    assert onceonly("status", "shop:app", "--json").answer[0]["destinations"] == {"*": "a function decides"}
    assert "destinations" not in onceonly("status", "shop:shop", "--json").answer[0]


def test_a_look_decides_nothing(onceonly: Terminal) -> None:
    """How long the tables keep claims is for the endpoint that is first to work on them, and that cannot be taken back."""
    onceonly("schema", "create", "shop:shop")
    assert onceonly("status", "shop:shop").code == 0
    assert onceonly.rows("shop.db", "SELECT * FROM onceonly_ring WHERE width > 0") == []


def change(onceonly: Terminal, setting: str) -> None:
    """Change a setting of the shop in its program."""
    program = onceonly.folder / "shop.py"
    line = f'shop.settings = __import__("dataclasses").replace(shop.settings, {setting})\n'
    program.write_text(program.read_text() + line)


def test_urls_come_from_the_environment_as_well(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same program on another database, without touching it."""
    monkeypatch.setenv("ONCEONLY_STORE", "sqlite:///other.db")
    monkeypatch.setenv("ONCEONLY_TRANSPORT", "sqlite:///other.db")
    onceonly.write("orders.jsonl", ORDERS)
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    assert len(onceonly.rows("other.db", "SELECT * FROM orders")) == 2
    assert not (onceonly.folder / "shop.db").exists()


def test_dead_letters_are_grouped_by_failure(onceonly: Terminal) -> None:
    """The first digits of a group's key select its letters."""
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": -1}, {"order_id": "A-2", "total": -2}, {"order_id": 3}])
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    found = onceonly("dead", "groups", "shop:shop", "--json").answer
    assert found["complete"]
    assert [(group["count"], group["type"], group["kind"]) for group in found["groups"]] == [
        (2, "PlaceOrder", "rejected"),
        (1, "PlaceOrder", "rejected"),
    ]
    largest, other = found["groups"]
    assert largest["place"] == "a total below zero"
    table = onceonly("dead", "groups", "sqlite:///shop.db").out
    assert "groups: 2" in table
    assert largest["group"][:12] in table
    listed = onceonly("dead", "list", "shop:shop", "--group", largest["group"][:9], "--json").answer
    assert [letter["id"] for letter in listed] == ["A-1", "A-2"]
    assert onceonly("dead", "purge", "shop:shop", "--group", other["group"], "--json").answer == {"purged": 1}
    assert "no group has the key" in onceonly("dead", "list", "shop:shop", "--group", other["group"][:9]).error


def test_a_dead_letter_is_edited_and_retried(onceonly: Terminal) -> None:
    """It is handled with the new body, and the action says so. Refusals are stored as well."""
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": -1}])
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    (letter,) = onceonly("dead", "list", "shop:shop", "--json").answer
    fixed, wrong = onceonly.folder / "fixed.json", onceonly.folder / "wrong.json"
    fixed.write_text('{"order_id": "A-1", "total": 1}')
    wrong.write_text('{"order_id": "A-1"')
    edit = ("dead", "edit", "shop:shop", letter["key"][:9])
    assert "needs a reason" in onceonly(*edit, str(fixed)).error
    assert "cannot be handled" in onceonly(*edit, str(wrong), "--note", "sign").error
    assert onceonly(*edit, str(fixed), "--note", "wrong sign", "--json").answer == {"action": 3, "retried": 1, "kept": []}
    while onceonly("run", "shop:shop", "--drain").code:  # the message is due a little later
        pass
    assert onceonly("dead", "list", "shop:shop", "--json").answer == []
    actions = onceonly("dead", "actions", "shop:shop", "--json").answer
    assert [(each["action"], each["kind"], each["state"], each["method"]) for each in actions] == [
        (3, "edit and retry", "done", "cli"),
        (2, "edit and retry", "refused", "cli"),
        (1, "edit and retry", "refused", "cli"),
    ]
    assert actions[0]["note"] == "wrong sign"
    (item,) = onceonly("dead", "actions", "shop:shop", "3", "--json").answer
    assert (item["key"], item["outcome"]) == (letter["key"], "handled")
    assert "action 9 does not exist" in onceonly("dead", "actions", "shop:shop", "9").error


def test_a_payload_mismatch_is_sent_as_a_new_message(onceonly: Terminal) -> None:
    """With a reason. A dead letter that can be retried is refused, and the refusal is stored."""
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": 1}])
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": 2}, {"order_id": "A-2", "total": -1}])
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    keys = {each["id"]: each["key"] for each in onceonly("dead", "list", "shop:shop", "--json").answer}
    new = ("dead", "send-as-new", "shop:shop")
    assert "needs a reason" in onceonly(*new, keys["A-1"]).error
    assert "not a payload mismatch" in onceonly(*new, keys["A-2"], "--note", "two orders").error
    sent = onceonly(*new, keys["A-1"][:9], "--note", "two orders", "--json").answer
    assert sent == {"action": 3, "sent": 1, "kept": []}
    while onceonly("run", "shop:shop", "--drain").code:  # the message is due a little later
        pass
    assert [each["id"] for each in onceonly("dead", "list", "shop:shop", "--json").answer] == ["A-2"]
    (item,) = onceonly("dead", "actions", "shop:shop", "3", "--json").answer
    assert (item["key"], item["outcome"]) == (keys["A-1"], "handled")


def test_purged_dead_letters_are_restored(onceonly: Terminal) -> None:
    """With the number of the action that deleted them."""
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": -1}, {"order_id": "A-2", "total": -2}])
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    before = onceonly("dead", "list", "shop:shop", "--json").answer
    assert onceonly("dead", "purge", "shop:shop", "--all", "--note", "noise", "--json").answer == {"purged": 2}
    (action,) = onceonly("dead", "actions", "shop:shop", "--json").answer
    assert (action["kind"], action["done"], action["note"]) == ("delete", 2, "noise")
    one = onceonly("dead", "restore", "shop:shop", str(action["action"]), before[1]["key"][:9], "--json").answer
    assert one == {"action": 2, "restored": 1}
    assert onceonly("dead", "list", "shop:shop", "--json").answer == before[1:]
    assert "2 restored" in onceonly("dead", "restore", "shop:shop", "1").out
    assert sorted(onceonly("dead", "list", "shop:shop", "--json").answer, key=lambda each: each["id"]) == before
    table = onceonly("dead", "actions", "shop:shop").out
    assert "restore" in table


def test_a_probe_that_fails_retries_no_more(onceonly: Terminal) -> None:
    """No worker runs, so its letter is not handled in time; a URL cannot check."""
    refused = onceonly("dead", "retry", "sqlite:///shop.db", "--transport", "sqlite:///shop.db", "--all", "--probe", "1")
    assert (refused.code, "--probe checks" in refused.error) == (2, True)


def test_dead_letters_are_listed_shown_retried_and_purged(onceonly: Terminal) -> None:
    """A rejected message, corrected nowhere, comes back as the same letter when it is retried."""
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": -1}, {"order_id": "A-2", "total": -2}])
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    letters = onceonly("dead", "list", "shop:shop", "--json").answer
    assert [(letter["id"], letter["type"], letter["reason"]) for letter in letters] == [
        ("A-1", "PlaceOrder", "a total below zero"),
        ("A-2", "PlaceOrder", "a total below zero"),
    ]
    key = letters[0]["key"]
    shown = onceonly("dead", "show", "shop:shop", key[:10], "--json").answer
    assert json.loads(shown["body"]) == {"order_id": "A-1", "total": -1}
    assert shown["history"][0]["kind"] == "rejected"
    assert "a total below zero" in onceonly("dead", "show", "sqlite:///shop.db", key).out
    table = onceonly("dead", "list", "sqlite:///shop.db", "--reason", "below").out
    assert "dead letters: 2" in table
    head = [name.strip() for name in table.splitlines()[2].strip("┃").split("┃")]
    assert head == ["key", "endpoint", "type", "id", "attempts", "at", "reason"]
    assert onceonly("dead", "list", "sqlite:///shop.db", "--endpoint", "mailer", "--json").answer == []
    sent_back = onceonly("dead", "retry", "shop:shop", key, "--json")
    assert sent_back.answer == {"retried": 1, "kept": []}
    assert "waiting 1 s, so that messages are delivered after their dead letters are deleted" in sent_back.err
    assert len(onceonly("dead", "list", "shop:shop", "--json").answer) == 1
    assert "1 dead" in onceonly("run", "shop:shop", "--drain").err
    assert len(onceonly("dead", "list", "shop:shop", "--json").answer) == 2
    purged = onceonly("dead", "purge", "shop:shop", "--type", "PlaceOrder", "--json")
    assert (purged.answer, purged.err) == ({"purged": 2}, "")
    assert onceonly("dead", "list", "shop:shop", "--json").answer == []


FAILS = """
from dataclasses import dataclass
from onceonly import Context, Endpoint, Retry

@dataclass
class Go:
    number: int

fails = Endpoint("fails", store="sqlite:///w.db", transport="sqlite:///q.db", retry=Retry(immediate=3, delayed=0))

@fails.handler
async def go(message: Go, context: Context) -> None:
    if context.attempts == 1:
        second()
    raise ValueError("first")

def second() -> None:
    raise KeyError("second")
"""


def test_a_letter_shows_every_attempt_with_its_handler_and_its_traceback(onceonly: Terminal) -> None:
    """Not only the last one: what failed first may be the cause."""
    (onceonly.folder / "fails.py").write_text(FAILS)
    onceonly("send", onceonly.write("go.jsonl", [{"number": 1}]), "--to", "fails:fails", "--type", "Go", "--id-from", "number")
    done = onceonly("run", "fails:fails", "--drain")
    assert "handler=fails.go" in done.err
    (letter,) = onceonly("dead", "list", "fails:fails", "--json").answer
    history = onceonly("dead", "show", "fails:fails", letter["key"], "--json").answer["history"]
    assert [each["handler"] for each in history] == ["fails.go"] * 4
    raised = [each["traceback"].splitlines()[-1] for each in history]
    assert raised == ["ValueError: first", "KeyError: 'second'", "ValueError: first", "ValueError: first"]
    text = onceonly("dead", "show", "fails:fails", letter["key"]).out
    assert (text.count("exception in fails.go: "), text.count("Traceback (most recent"), text.count(", in second")) == (4, 4, 1)
    assert "onceonlyhistory" not in text


def test_a_letter_without_identity_cannot_be_retried_and_says_why(onceonly: Terminal) -> None:
    """It stays, and the exit code is 1."""
    onceonly("send", onceonly.write("none.jsonl", []), "--to", "shop:shop")
    headers = json.dumps([["content-type", "application/json"]])
    onceonly("run", "shop:shop", "--drain")
    with_nothing = (
        "INSERT INTO onceonly_messages (queue, visible_at, leases, receipt, headers, body) VALUES (?, 0, 0, '', ?, ?)"
    )
    onceonly.change("queue.db", with_nothing, ("shop", headers, b"{}"))
    onceonly("run", "shop:shop", "--drain")
    done = onceonly("dead", "retry", "shop:shop", "--all")
    assert (done.code, done.out) == (1, "0 retried\n")
    assert "no identity" in done.err
    assert len(onceonly("dead", "list", "shop:shop", "--json").answer) == 1


@pytest.mark.slow
def test_retrying_a_message_whose_effects_were_refused_sends_them_without_handling_it_again(onceonly: Terminal) -> None:
    """Its work is committed; once its command has a queue, only that is left to do."""
    (onceonly.folder / "works.py").write_text(WORKS)
    onceonly.write("go.jsonl", [{"number": 1}])
    onceonly("send", "go.jsonl", "--to", "works:works", "--type", "Go", "--id-from", "number")
    onceonly("run", "works:works", "--drain")
    (letter,) = onceonly("dead", "list", "works:works", "--json").answer
    assert letter["finish_only"]
    refused = onceonly("dead", "retry", "works:works", letter["key"])
    onceonly("run", "works:works", "--drain")
    assert (refused.code, len(onceonly("dead", "list", "works:works", "--json").answer)) == (0, 1)
    onceonly("topology", "create", "works:billing")
    onceonly("dead", "retry", "works:works", "--reason", "rejected")
    onceonly("run", "works:works", "works:billing", "--drain")
    for left in onceonly("status", "works:works", "works:billing", "--json").answer:
        numbers = [left[name] for name in ("waiting", "held", "delayed", "records", "late", "oldest", "dead_letters")]
        assert numbers == [0, 0, 0, 0, 0, None, 0]
    assert (onceonly.folder / "log").read_text() == "worked 1\nbilled 1\n"


def test_purging_a_letter_whose_work_is_committed_says_that_its_record_stays(onceonly: Terminal) -> None:
    """The handler ran; the relay sends what it sends once the broker takes it."""
    (onceonly.folder / "works.py").write_text(WORKS)
    onceonly.write("go.jsonl", [{"number": 1}])
    onceonly("send", "go.jsonl", "--to", "works:works", "--type", "Go", "--id-from", "number")
    onceonly("run", "works:works", "--drain")
    purged = onceonly("dead", "purge", "works:works", "--all")
    assert (purged.code, purged.out) == (0, "1 purged\n")
    assert purged.err.startswith("warning: 1 of 1 are finish-only: ")
    left = onceonly("status", "works:works", "--json").answer[0]
    assert (left["records"], left["late"]) == (1, 0)
    onceonly.change("w.db", "UPDATE onceonly_records SET stored_at = stored_at - 75000")
    left = onceonly("status", "works:works", "--json").answer[0]
    assert (left["records"], left["late"]) == (1, 1)
    assert left["oldest"] >= 75
    onceonly("topology", "create", "works:billing")
    onceonly("run", "works:works", "--drain")
    onceonly("run", "works:billing", "--drain")
    assert onceonly("status", "works:works", "--json").answer[0]["records"] == 0
    assert (onceonly.folder / "log").read_text() == "worked 1\nbilled 1\n"
    assert "Its record stays" in onceonly("dead", "purge", "--help").out
    assert "Key of the dead letter" in onceonly("dead", "show", "--help").out


def test_tables_are_printed_checked_and_created_on_command(onceonly: Terminal) -> None:
    """Printing connects to nothing; checking says what is missing, with exit code 1."""
    printed = onceonly("schema", "print", "sqlite:///new.db", "--component", "store")
    assert "CREATE TABLE IF NOT EXISTS onceonly_claims" in printed.out
    assert not (onceonly.folder / "new.db").exists()
    missing = onceonly("schema", "check", "sqlite:///new.db?create=false", "--json")
    assert missing.code == 1
    assert not (onceonly.folder / "new.db").exists()
    assert [(each["component"], each["ready"]) for each in missing.answer] == [
        ("store", False),
        ("transport", False),
        ("documents", False),
    ]
    assert "onceonly schema create" in missing.answer[0]["problem"]
    assert onceonly("run", "shop:shop", "--store", "sqlite:///new.db?create=false", "--drain").code == 2
    for command in ("create", "upgrade", "check"):
        done = onceonly("schema", command, "sqlite:///new.db", "--json")
        assert (done.code, [each["ready"] for each in done.answer]) == (0, [True, True, True])
    assert "ready" in onceonly("schema", "check", "shop:shop", "--store", "sqlite:///new.db", "--component", "store").out


def test_a_lost_table_of_claims_stops_the_start_until_the_loss_is_accepted(onceonly: Terminal) -> None:
    """An empty one would let copies be handled again, and nobody would have been asked."""
    assert onceonly("schema", "create", "shop:shop").code == 0
    with sqlite3.connect(onceonly.folder / "shop.db") as raw:
        raw.execute("DROP TABLE onceonly_claim_07")
    raw.close()
    for arguments in (("run", "shop:shop", "--drain"), ("status", "shop:shop"), ("schema", "check", "shop:shop")):
        refused = onceonly(*arguments)
        assert refused.code != 0
        said = " ".join((refused.out + refused.err).split())
        assert "onceonly_claim_07" in said
        assert "--accept-loss shop:shop" in said.replace("- ", "-")
    assert onceonly("schema", "upgrade", "shop:shop").code == 1
    made = onceonly("schema", "create", "--accept-loss", "shop:shop", "--component", "store", "--json")
    assert (made.code, made.answer[0]["repaired"]) == (0, ["table onceonly_claim_07"])
    assert onceonly("run", "shop:shop", "--drain").code == 0


@pytest.mark.parametrize("transport", ["amqp://me:secret@127.0.0.1:1/", "memory://queue"])
def test_a_transport_without_tables_is_left_out(onceonly: Terminal, transport: str) -> None:
    """The store gets its tables, the broker is told to have none, and is not even asked."""
    for command in ("create", "upgrade", "check"):
        done = onceonly("schema", command, "shop:shop", "--transport", transport, "--json")
        assert (done.code, [(each["component"], each["ready"]) for each in done.answer]) == (0, [("store", True)])
        shown, again = transport.replace("me:secret@", ""), "URL" if "secret" in transport else transport
        advice = f"`onceonly topology create shop:shop --transport {again}` creates its queues"
        assert done.err == f"the transport {shown} has no tables: {advice}\n"
    printed = onceonly("schema", "print", "shop:shop", "--transport", transport)
    assert (printed.code, "onceonly_claims" in printed.out, "onceonly_messages" in printed.out) == (0, True, False)
    assert "has no tables" in printed.err


def test_statements_are_printed_and_not_executed(onceonly: Terminal) -> None:
    """Those that create tables, and those that upgrade them; there may be none."""
    place = ("sqlite:///new.db", "--component", "store")
    for command in ("create", "upgrade"):
        printed = onceonly("schema", command, *place, "--print")
        assert (printed.code, "CREATE TABLE IF NOT EXISTS onceonly_claims" in printed.out) == (0, True)
    assert not (onceonly.folder / "new.db").exists()
    assert onceonly("schema", "create", *place).code == 0
    assert "nothing to upgrade" in onceonly("schema", "upgrade", *place, "--print").out


def test_queues_are_declared_before_anything_runs(onceonly: Terminal) -> None:
    """After that, a plain name is enough to send to."""
    expected = [{"endpoint": "shop", "events": ["PlaceOrder"]}]
    assert onceonly("topology", "print", "shop:shop", "--json").answer == expected
    assert not (onceonly.folder / "queue.db").exists()
    onceonly.write("orders.jsonl", ORDERS)
    assert onceonly("topology", "create", "shop:shop", "--json").answer == expected
    to = ("--to", "shop", "--transport", "sqlite:///queue.db", "--type", "PlaceOrder", "--id-from", "order_id")
    assert onceonly("send", "orders.jsonl", *to).out == "2 sent to shop\n"
    assert "PlaceOrder" in onceonly("topology", "print", "shop:shop").out


def test_an_event_that_is_no_longer_handled_is_unsubscribed_on_command(onceonly: Terminal) -> None:
    """What came before stays; a type that is handled cannot be given up."""
    event = {"specversion": "1.0", "source": "/s", "type": "PlaceOrder", "data": {"order_id": "A-1", "total": 1}}
    send = ("--event", "--transport", "sqlite:///queue.db")
    onceonly("schema", "create", "shop:shop")
    onceonly("topology", "create", "shop:shop")
    onceonly("send", onceonly.write("events.jsonl", [event | {"id": "1"}]), *send)
    refused = onceonly("topology", "unsubscribe", "shop:shop", "--type", "PlaceOrder")
    assert (refused.code, refused.out) == (2, "")
    assert (
        "shop:shop handles PlaceOrder, and would subscribe again at its next start: remove the handler first" in refused.error
    )
    program = onceonly.folder / "shop.py"
    program.write_text(program.read_text().replace("PlaceOrder", "PlaceParcel"))
    onceonly("topology", "create", "shop:shop")
    onceonly("send", onceonly.write("events.jsonl", [event | {"id": "2"}]), *send)
    assert onceonly("status", "shop:shop", "--json").answer[0]["waiting"] == 2
    for words in ("unsubscribed from PlaceOrder\n", "PlaceOrder: there was no subscription\n"):
        done = onceonly("topology", "unsubscribe", "shop:shop", "--type", "PlaceOrder")
        assert (done.code, done.err) == (0, words)
    onceonly("send", onceonly.write("events.jsonl", [event | {"id": "3"}]), *send)
    assert onceonly("status", "shop:shop", "--json").answer[0]["waiting"] == 2
    as_json = onceonly("topology", "unsubscribe", "shop:shop", "--type", "Other", "--json")
    assert (as_json.answer, as_json.err) == ([{"endpoint": "shop", "events": ["PlaceParcel"]}], "")


def test_help_and_version_are_answers(onceonly: Terminal) -> None:
    """Every command has a help text of its own."""
    assert onceonly("--version").out.startswith("onceonly ")
    for command in (
        (),
        ("run",),
        ("send",),
        ("status",),
        ("schema",),
        ("schema", "create"),
        ("dead",),
        ("dead", "retry"),
        ("dead", "export"),
        ("dead", "import"),
        ("topology",),
        ("topology", "unsubscribe"),
        ("verify",),
    ):
        done = onceonly(*command, "--help")
        assert (done.code, done.err) == (0, "")
        assert "Usage: onceonly" in done.out


def test_an_unknown_option_is_a_usage_error(onceonly: Terminal) -> None:
    """Exit code 2, on standard error."""
    done = onceonly("run", "shop:shop", "--fast")
    assert (done.code, done.out) == (2, "")
    assert "--fast" in done.err
