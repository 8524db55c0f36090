"""Messages and keys in Django's own transactions, on each of its databases. Who commits is Django."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Tokens
from onceonly.assembly import open_transport
from onceonly.endpoint.host import host_of
from onceonly.errors import ConflictError, KeyReused, SchemaMissing, SetupError, TransactionMisused
from onceonly.integrations.sending_thread import sending_of
from onceonly.ports.transport import Topology
from tests.django_project import alias_of, set_up
from tests.integrations.django_databases import PLACES, migrated

set_up()

from django.core.management import call_command  # noqa: E402 - Django is set up before
from django.db import DatabaseError, IntegrityError, close_old_connections, connections, transaction  # noqa: E402 - the same
from django.http import HttpResponse  # noqa: E402 - the same
from django.test import Client  # noqa: E402 - the same
from django.test.utils import CaptureQueriesContext, override_settings  # noqa: E402 - the same
from django.urls import path  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint, borrowed, captured, idempotent, search_path  # noqa: E402 - the same
from onceonly.integrations.django.endpoint import take_key  # noqa: E402 - the same
from tests.django_project.models import Line, Order  # noqa: E402 - the same


@pytest.fixture(params=PLACES, scope="module")
def alias(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a database with all tables an alias."""
    with migrated(request.param, tmp_path_factory.mktemp("django")) as found:
        yield found


@pytest.fixture
def shop(alias: str) -> Iterator[Endpoint]:
    """Make an endpoint whose messages nobody sends, and leave no rows."""
    yield Endpoint("shop", database=alias, transport=f"memory://{uuid4().hex}")
    call_command("flush", database=alias, interactive=False, verbosity=0)


def count(alias: str, table: str) -> int:
    """Count rows past the library."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - of this test
        return int(cursor.fetchone()[0])


def kept(alias: str) -> tuple[int, int, int]:
    """Count orders, records and keys."""
    return count(alias, "django_project_order"), count(alias, "onceonly_records"), count(alias, "onceonly_keys")


def place(shop: Endpoint, name: str = "a") -> None:
    """Store an order, and announce it."""
    Order.objects.using(shop.database).create(name=name)
    shop.publish({"order": name}, type="Placed")


def test_rows_and_messages_are_committed_together(shop: Endpoint, alias: str) -> None:
    """Those of send, too."""
    with transaction.atomic(using=alias):
        place(shop)
        shop.send({"order": "a"}, to="billing", type="Bill")
    assert kept(alias) == (1, 2, 0)


def test_rows_and_messages_are_rolled_back_together(shop: Endpoint, alias: str) -> None:
    """By an exception, and by Django's own flag."""
    with suppress(ZeroDivisionError), transaction.atomic(using=alias):
        place(shop)
        raise ZeroDivisionError
    with transaction.atomic(using=alias):
        place(shop)
        transaction.set_rollback(True, using=alias)
    assert kept(alias) == (0, 0, 0)


def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(shop: Endpoint, alias: str) -> None:
    """Others stay, and what is captured is what is committed."""
    with captured(shop) as published, transaction.atomic(using=alias):
        place(shop, "a")
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            place(shop, "b")
            with transaction.atomic(using=alias):
                place(shop, "c")
            raise ZeroDivisionError
        with transaction.atomic(using=alias):
            place(shop, "d")
        assert published.bodies == [{"order": "a"}, {"order": "d"}]
    assert [each.body["order"] for each in published.messages] == ["a", "d"]
    assert kept(alias) == (2, 2, 0)


def test_messages_of_a_key_are_written_by_the_statement_of_its_answer(shop: Endpoint, alias: str) -> None:
    """Two statements on PostgreSQL. A savepoint that is rolled back takes its messages along."""
    with captured(shop) as published, CaptureQueriesContext(connections[alias]) as queries:
        with shop.atomic(idempotency_key="k1") as entry:
            shop.publish({"order": "a"}, type="placed")
            with suppress(ZeroDivisionError), transaction.atomic(using=alias):
                shop.publish({"order": "b"}, type="placed")
                raise ZeroDivisionError
            assert (published.bodies, kept(alias)) == ([{"order": "a"}], (0, 0, 1))
            entry.answer = "done"
        assert published.bodies == [{"order": "a"}]
    own = [
        each["sql"] for each in queries.captured_queries if "onceonly_" in each["sql"] and "count" not in each["sql"].lower()
    ]
    if connections[alias].vendor == "postgresql":
        assert [each.split()[0] for each in own if not each.startswith("SELECT public.onceonly")] == ["WITH", "WITH"], own
    assert kept(alias) == (0, 1, 1)


def test_only_what_is_committed_is_told(shop: Endpoint, alias: str) -> None:
    """After the commit, and for each record once."""
    told: list[int] = []
    host_of(shop).notifier.notify = lambda records: told.append(len(records))  # type: ignore[method-assign]
    with transaction.atomic(using=alias):
        place(shop)
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            place(shop)
            raise ZeroDivisionError
        assert told == []
    assert told == [1]
    with suppress(ZeroDivisionError), transaction.atomic(using=alias):
        place(shop)
        raise ZeroDivisionError
    assert told == [1]


def test_outside_of_a_transaction_there_is_nothing_to_commit_with(shop: Endpoint, alias: str) -> None:
    """Also in a transaction of another database."""
    with pytest.raises(TransactionMisused, match=f"transaction.atomic\\(using='{alias}'\\)"):
        shop.publish({}, type="Placed")
    with transaction.atomic(), pytest.raises(TransactionMisused, match="none is open"):
        shop.send({}, to="billing", type="Bill")
    assert kept(alias) == (0, 0, 0)


def test_the_transaction_of_a_test_case_is_not_one_of_the_application(shop: Endpoint, alias: str) -> None:
    """So a test finds out that a message is outside of `atomic()`."""
    around: Any = transaction.atomic(using=alias)
    around._from_testcase = True
    with around:
        with pytest.raises(TransactionMisused, match="none is open"):
            shop.publish({}, type="Placed")
        with transaction.atomic(using=alias):
            place(shop)
        assert kept(alias) == (1, 1, 0)


def test_a_broken_transaction_takes_no_message(shop: Endpoint, alias: str) -> None:
    """Django refuses the statement, as any other."""
    with transaction.atomic(using=alias):
        with suppress(ZeroDivisionError), transaction.atomic(using=alias, savepoint=False):
            raise ZeroDivisionError
        with pytest.raises(transaction.TransactionManagementError):
            place(shop)
        with pytest.raises(transaction.TransactionManagementError):
            shop.publish({}, type="Placed")
    assert kept(alias) == (0, 0, 0)


def test_a_constraint_that_fails_at_the_commit_takes_all_along(shop: Endpoint, alias: str) -> None:
    """On MariaDB, whose constraints are not deferred, the statement fails."""

    def work() -> None:
        with transaction.atomic(using=alias):
            place(shop)
            Line.objects.using(alias).create(order_id=999)

    with pytest.raises(IntegrityError):
        work()
    assert kept(alias) == (0, 0, 0)


def test_a_message_is_one_statement(shop: Endpoint, alias: str) -> None:
    """It is in Django's query log, and nothing else is, also not with the first message of a connection."""
    connections[alias].close()
    borrowed._engine_of.cache_clear()  # as in a new process, which asks the server for its version, and looks for the tables
    search_path._FOUND.clear()
    with transaction.atomic(using=alias), CaptureQueriesContext(connections[alias]) as queries:
        shop.publish({}, type="Placed")
    (only,) = queries
    schema = "public." if alias == "postgresql" else ""
    assert only["sql"].startswith(f"INSERT INTO {schema}onceonly_records")


def test_a_connection_that_was_closed_is_opened_again(shop: Endpoint, alias: str) -> None:
    """As Django does between requests."""
    for _ in range(2):
        with transaction.atomic(using=alias):
            place(shop)
        connections[alias].close()
    assert kept(alias) == (2, 2, 0)


def test_djangos_connection_stays_as_it_was(shop: Endpoint, alias: str) -> None:
    """SQLAlchemy neither ends its transaction, nor changes its settings or functions."""
    connections[alias].close()
    with transaction.atomic(using=alias):
        driver = connections[alias].connection
        if alias == "sqlite":
            driver.create_function("REGEXP", 2, lambda _pattern, _text: False)
        place(shop)
        place(shop)
        assert connections[alias].connection is driver
    assert connections[alias].get_autocommit()
    if alias == "sqlite":
        assert Order.objects.using(alias).filter(name__regex="[ab]").count() == 0, "a function of SQLAlchemy's"
    if alias == "postgresql":
        assert not driver._notice_handlers
    connections[alias].close()


def test_tables_that_are_missing_are_named_with_the_command(tmp_path: Path) -> None:
    """And not in the words of the database."""
    with alias_of("empty", f"sqlite:///{tmp_path}/empty.db"):
        shop = Endpoint("shop", database="empty", transport="memory://none")
        with transaction.atomic(using="empty"), pytest.raises(SchemaMissing, match=r"manage.py migrate"):
            shop.publish({}, type="Placed")


def test_two_databases_have_their_own_messages(shop: Endpoint, alias: str, tmp_path: Path) -> None:
    """A message belongs to the transaction of its endpoint's database, and to no other."""
    with alias_of("other", f"sqlite:///{tmp_path}/other.db"):
        call_command("migrate", database="other", run_syncdb=True, verbosity=0)
        other = Endpoint("shop", database="other", transport="memory://other")
        with transaction.atomic(using=alias):
            place(shop)
            with suppress(ZeroDivisionError), transaction.atomic(using="other"):
                place(other)
                raise ZeroDivisionError
            with transaction.atomic(using="other"):
                place(other)
                place(other)
        assert (kept(alias), kept("other")) == ((1, 1, 0), (2, 2, 0))


# keys


def once(shop: Endpoint, key: str = "k", **options: Any) -> Any:
    """Place an order once for each key."""
    with shop.atomic(idempotency_key=key, **options) as entry:
        if not entry.is_known:
            place(shop)
            entry.answer = {"placed": "a"}
        return entry.answer


def test_a_key_is_committed_with_rows_messages_and_answer(shop: Endpoint, alias: str) -> None:
    """Each repetition gets the answer, and does nothing."""
    assert [once(shop) for _ in range(3)] == [{"placed": "a"}] * 3
    assert once(shop, "other") == {"placed": "a"}
    assert kept(alias) == (2, 2, 2)


def test_a_key_with_another_request_is_refused(shop: Endpoint, alias: str) -> None:
    """By the fingerprint; another scope is another key."""
    once(shop, request={"a": 1})
    with pytest.raises(KeyReused):
        once(shop, request={"a": 2})
    once(shop, request={"a": 2}, scope="tenant")
    assert kept(alias) == (2, 2, 2)


def test_a_key_goes_with_its_savepoint(shop: Endpoint, alias: str) -> None:
    """In the same transaction it can be taken again."""
    with transaction.atomic(using=alias):
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            once(shop)
            raise ZeroDivisionError
        assert kept(alias) == (0, 0, 0)
        assert once(shop) == {"placed": "a"}
    assert kept(alias) == (1, 1, 1)


def test_a_failure_frees_the_key(shop: Endpoint, alias: str) -> None:
    """Everything is rolled back."""
    with suppress(ZeroDivisionError), shop.atomic(idempotency_key="k"):
        place(shop)
        raise ZeroDivisionError
    assert kept(alias) == (0, 0, 0)
    once(shop)
    assert kept(alias) == (1, 1, 1)


def test_messages_of_a_savepoint_under_a_key_go_with_it(shop: Endpoint, alias: str) -> None:
    """The key finds those that were committed."""
    with shop.atomic(idempotency_key="k"):
        place(shop)
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            place(shop)
            raise ZeroDivisionError
        place(shop)
    assert kept(alias) == (2, 2, 1)
    with transaction.atomic(using=alias):
        entry, _ = take_key(shop, "k", None)
        assert (entry.is_known, entry.is_dispatched) == (True, False)


def test_a_known_key_takes_no_messages(shop: Endpoint, alias: str) -> None:
    """A block that did not look is told so."""
    once(shop)
    with pytest.raises(TransactionMisused, match="is_known"), shop.atomic(idempotency_key="k"):
        shop.publish({}, type="Placed")
    assert kept(alias) == (1, 1, 1)


def test_messages_after_the_block_of_a_key_do_not_belong_to_it(shop: Endpoint, alias: str) -> None:
    """In the same transaction."""
    with transaction.atomic(using=alias):
        once(shop)
        place(shop)
    assert kept(alias) == (2, 2, 1)


def test_of_two_attempts_with_one_key_one_works(shop: Endpoint, alias: str) -> None:
    """The second one waits for the commit of the first, and gets its answer."""
    has_key, may_commit = threading.Event(), threading.Event()
    found: list[Any] = []

    def first() -> None:
        with shop.atomic(idempotency_key="k") as entry:
            has_key.set()
            may_commit.wait(60)
            place(shop)
            entry.answer = "first"
        connections[alias].close()

    def second() -> None:
        has_key.wait(60)
        try:
            with pytest.raises(ConflictError):  # control: it is really in the way
                once(shop, wait=0.001)
            may_commit.set()
            found.append(once(shop, wait=30))
        finally:
            may_commit.set()
            connections[alias].close()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(100)
    assert found == ["first"]
    assert kept(alias) == (1, 1, 1)


def test_a_lost_race_can_be_repeated(shop: Endpoint, alias: str) -> None:
    """When the first attempt fails, the second one, which has waited, does the work."""
    has_key, may_fail = threading.Event(), threading.Event()
    found: list[Any] = []

    def first() -> None:
        with suppress(ZeroDivisionError), shop.atomic(idempotency_key="k"):
            place(shop)
            has_key.set()
            may_fail.wait(60)
            raise ZeroDivisionError
        connections[alias].close()

    def second() -> None:
        has_key.wait(60)
        threading.Timer(0.05, may_fail.set).start()
        found.append(once(shop, wait=30))
        connections[alias].close()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(100)
    assert found == [{"placed": "a"}]
    assert kept(alias) == (1, 1, 1)


# requests


def respond(view: Any, shop: Endpoint, key: str | None = "k", **terms: Any) -> Any:
    """Send a request to a view that is done once, as Django's test client does."""
    urls = (path("orders", idempotent(shop, **terms)(view)),)
    with override_settings(ROOT_URLCONF=urls):
        headers = {} if key is None else {"Idempotency-Key": key}
        return Client(raise_request_exception=False).post("/orders", headers=headers)


def code_of(response: Any) -> tuple[int, str]:
    """Return the status and the word for programs of a problem."""
    return response.status_code, json.loads(response.content)["code"]


def test_a_request_is_done_once(shop: Endpoint, alias: str) -> None:
    """On each database."""

    def view(_request: Any) -> HttpResponse:
        place(shop)
        return HttpResponse("placed", status=201)

    found = [respond(view, shop) for _ in range(2)]
    assert [(each.status_code, each.content) for each in found] == [(201, b"placed")] * 2
    assert found[1]["Idempotent-Replayed"] == "true"
    assert kept(alias) == (1, 1, 1)


def test_a_constraint_that_fails_at_the_commit_of_a_request_is_a_problem(shop: Endpoint, alias: str) -> None:
    """A repetition does not help, and nothing has happened. MariaDB checks at once, so the view raises."""

    def view(_request: Any) -> HttpResponse:
        place(shop)
        Line.objects.using(alias).create(order_id=999)
        return HttpResponse(status=201)

    response = respond(view, shop)
    assert response.status_code == 500
    if alias != "mariadb":
        assert code_of(response) == (500, "commit-refused")
    assert kept(alias) == (0, 0, 0)


@pytest.mark.parametrize("key", ["k", None])
def test_a_transaction_that_an_error_has_aborted_is_not_answered_with_success(
    shop: Endpoint, alias: str, key: str | None
) -> None:
    """PostgreSQL answers its COMMIT with a rollback, which no driver reports. Others go on after the error."""

    def view(_request: Any) -> HttpResponse:
        place(shop)
        with suppress(DatabaseError), connections[alias].cursor() as cursor:
            cursor.execute("SELECT * FROM nowhere")
        return HttpResponse(status=201)

    response = respond(view, shop, key, key_required=False)
    if alias == "postgresql":
        assert code_of(response) == (500, "commit-refused")
        assert kept(alias) == (0, 0, 0)
    else:
        assert response.status_code == 201
        assert kept(alias) == (1, 1, int(key is not None))


def kill(alias: str) -> None:
    """End the connection of an alias on its server, as a restart does."""
    number = {"postgresql": "pg_backend_pid()", "mariadb": "connection_id()"}[alias]
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT {number}")
        (own,) = cursor.fetchone()
    statement = {"postgresql": "SELECT pg_terminate_backend(%s)", "mariadb": "KILL %s"}[alias]
    connection = connections[alias].copy()
    with connection.cursor() as cursor:
        cursor.execute(statement, [own])
    connection.close()


@pytest.mark.parametrize("moment", ["before", "within", "after the key"])
def test_a_connection_that_is_lost_before_the_commit_has_done_nothing(shop: Endpoint, alias: str, moment: str) -> None:
    """The client repeats its request, on a new connection."""
    if alias == "sqlite":
        pytest.skip("a file has no connection to lose")
    pending = [moment]

    def view(_request: Any) -> HttpResponse:
        if pending[:1] == ["within"]:
            kill(pending.pop() and alias)
        place(shop)
        if pending[:1] == ["after the key"]:
            kill(pending.pop() and alias)
        return HttpResponse(status=201)

    with connections[alias].cursor():
        pass  # it is open, as one that Django keeps between requests
    if moment == "before":
        kill(alias)
    assert code_of(respond(view, shop)) == (503, "not-done")
    close_old_connections()
    assert respond(view, shop).status_code == 201
    assert kept(alias) == (1, 1, 1)


def test_a_callback_that_fails_after_the_commit_does_not_undo_it(shop: Endpoint, alias: str) -> None:
    """The first response is Django's error, a repetition gets the stored one."""

    def fail() -> None:
        raise DatabaseError

    def view(_request: Any) -> HttpResponse:
        place(shop)
        transaction.on_commit(fail, using=alias)
        return HttpResponse("placed", status=201)

    first, second = [respond(view, shop) for _ in range(2)]
    assert (first.status_code, second.status_code, second.content) == (500, 201, b"placed")
    assert kept(alias) == (1, 1, 1)


def test_a_request_that_takes_too_long_is_not_committed(shop: Endpoint, alias: str) -> None:
    """By the clock of the database."""

    def view(_request: Any) -> HttpResponse:
        place(shop)
        time.sleep(0.02)
        return HttpResponse(status=201)

    assert code_of(respond(view, shop, max_commit=timedelta(milliseconds=1))) == (503, "not-done")
    assert kept(alias) == (0, 0, 0)


# sending


async def test_a_thread_sends_what_is_committed(alias: str, tmp_path: Path) -> None:
    """And nothing of what was rolled back. It starts with the first commit."""
    queue = f"sqlite:///{tmp_path}/queue.db"
    async with open_transport(queue, "billing") as billing:
        await billing.declare([Topology(endpoint="billing", events=())])
        shop = Endpoint("shop", database=alias, transport=queue)

        def work() -> None:
            for name in ("a", "b", "c"):
                with transaction.atomic(using=alias):
                    shop.send({"order": name}, to="billing", type="Bill")
                    transaction.set_rollback(name == "b", using=alias)
            connections[alias].close()

        try:
            with override_settings(ONCEONLY={}):
                await asyncio.to_thread(work)
            found: list[Any] = []
            while len(found) < 2:
                taken = await billing.receive(10, 1)
                await billing.ack(taken)
                found += [json.loads(each.body)["order"] for each in taken]
            assert sorted(found) == ["a", "c"]
        finally:
            await asyncio.to_thread(sending_of(shop).stop)


def test_where_greenlets_replace_threads_a_relay_sends(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop in a thread would be a greenlet that blocks the process."""
    shop = Endpoint("shop", database=alias, transport="memory://greenlets")
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda _name: True))
    with override_settings(ONCEONLY={}), transaction.atomic(using=alias):
        shop.publish({}, type="Placed")
    assert sending_of(shop)._thread is None
    call_command("flush", database=alias, interactive=False, verbosity=0)


# the schema


def test_flush_empties_the_tables(shop: Endpoint, alias: str) -> None:
    """As `TransactionTestCase` does after each test. The tables, and what says how claims are kept, stay."""
    once(shop)
    before = count(alias, "onceonly_ring")
    call_command("flush", database=alias, interactive=False, verbosity=0)
    assert kept(alias) == (0, 0, 0)
    assert count(alias, "onceonly_ring") == before
    call_command("migrate", database=alias, verbosity=0)
    once(shop)
    call_command("migrate", database=alias, verbosity=0)
    assert kept(alias) == (1, 1, 1), "migrate empties nothing"


def test_an_endpoint_that_issues_tokens_is_refused(alias: str) -> None:
    """As by `enlist`."""
    issuing = Endpoint("shop", database=alias, transport="memory://x", deduplication=Tokens("memory://tokens"))
    with transaction.atomic(using=alias), pytest.raises(SetupError, match="tokens"):
        issuing.publish({}, type="Placed")
