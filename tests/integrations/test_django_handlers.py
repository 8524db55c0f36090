"""Handlers on Django's ORM: the claim of a message, the rows and what is sent are one commit of Django's."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.orm import Session

from onceonly import Context, History, Off, Retry, Shadow, Tokens, testing
from onceonly import Endpoint as PlainEndpoint
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler, SetupError
from onceonly.integrations.django import unit_transactions
from tests.django_project import set_up
from tests.integrations.django_databases import PLACES, migrated

set_up()

from django.core.management import call_command  # noqa: E402 - Django is set up before
from django.db import IntegrityError, OperationalError, connections, transaction  # noqa: E402 - the same
from django.db.models import F  # noqa: E402 - the same
from django.db.models.signals import post_save  # noqa: E402 - the same
from django.test.utils import override_settings  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint  # noqa: E402 - the same
from onceonly.integrations.django.endpoint import ENDPOINTS  # noqa: E402 - the same
from tests.django_project.models import Line, Order  # noqa: E402 - the same

KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}
"""Statements that end a session, whatever it does."""


@dataclass
class PlaceOrder:
    """A message."""

    name: str


@pytest.fixture(params=PLACES, scope="module")
def alias(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a database with all tables an alias."""
    with migrated(request.param, tmp_path_factory.mktemp("django"), suffix="_handlers") as found:
        yield found


@pytest.fixture
def shop(alias: str) -> Iterator[Endpoint]:
    """Make an endpoint, and leave no rows."""
    endpoint = Endpoint("shop", database=alias, transport=f"memory://{uuid4().hex}", relay_after=0.2)
    yield endpoint
    ENDPOINTS.discard(endpoint)
    call_command("flush", database=alias, interactive=False, verbosity=0)


def count(alias: str, table: str) -> int:
    """Count rows past the library."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - of this test
        return int(cursor.fetchone()[0])


def orders(alias: str) -> list[str]:
    """Return the names of the orders."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT name FROM django_project_order ORDER BY name")
        return [str(row[0]) for row in cursor.fetchall()]


def run(shop: Endpoint, test: Callable[[testing.EndpointRun], Any], **options: Any) -> Any:
    """Run a test with an open endpoint."""

    async def main() -> Any:
        async with testing.run(shop, **options) as opened:
            return await test(opened)

    return asyncio.run(main())


def deliver(shop: Endpoint, *names: str, **options: Any) -> testing.EndpointRun:
    """Deliver a message for each name, whose id is the name. Failures of handlers are in the run that is returned."""

    async def test(opened: testing.EndpointRun) -> testing.EndpointRun:
        for name in names:
            await opened.deliver(PlaceOrder(name), id=name, **options)
        return opened

    found: testing.EndpointRun = run(shop, test, raise_failures=False)
    return found


def reasons(opened: testing.EndpointRun) -> list[str]:
    """Return why messages are dead letters."""
    return [letter.reason for letter in opened.dead_letters]


def place(shop: Endpoint, alias: str) -> None:
    """Register the handler of the shop."""

    @shop.handler
    def place_order(order: PlaceOrder, context: Context) -> None:
        Order.objects.using(alias).create(name=order.name)
        context.publish({"order": order.name}, type="Placed")


def test_rows_claim_and_messages_are_one_commit(shop: Endpoint, alias: str) -> None:
    """A second delivery changes nothing."""
    place(shop, alias)
    opened = deliver(shop, "a", "a", "b")
    assert (orders(alias), len(opened.sent), count(alias, "onceonly_records")) == (["a", "b"], 2, 0)


@pytest.mark.parametrize("point", testing.CRASH_POINTS)
def test_a_crash_at_any_point_leaves_one_row(shop: Endpoint, alias: str, point: str) -> None:
    """Wherever the process dies, one row is there, and one message was sent."""
    place(shop, alias)
    opened = deliver(shop, "a", crash_at=point, must_crash=False)
    assert (orders(alias), len(opened.sent), opened.dead_letters) == (["a"], 1, ())


def test_without_the_integration_a_crash_doubles_the_row(alias: str) -> None:
    """The control: the store of the endpoint is the same database, and the row is Django's own commit."""
    url = Endpoint("other", database=alias).settings.store
    shop = PlainEndpoint("shop", store=url, transport=f"memory://{uuid4().hex}")

    @shop.handler
    async def place_order(order: PlaceOrder) -> None:
        await asyncio.to_thread(create, order.name)

    def create(name: str) -> None:
        Order.objects.using(alias).create(name=name)
        connections[alias].close()

    async def test() -> None:
        async with testing.run(shop, own_store=alias != "sqlite_handlers") as opened:
            await opened.deliver(PlaceOrder("a"), crash_at="before-commit")

    asyncio.run(test())
    found = orders(alias)
    call_command("flush", database=alias, interactive=False, verbosity=0)
    assert found == ["a", "a"]


def test_an_exception_undoes_everything(shop: Endpoint, alias: str) -> None:
    """Rows, what was sent, and what `shop.publish` sent; the next try starts anew."""
    tries = []

    @shop.handler(retry=Retry(immediate=1))
    def place_order(order: PlaceOrder, context: Context) -> None:
        Order.objects.using(alias).create(name=order.name)
        context.publish({"by": "context"}, type="Placed")
        shop.publish({"by": "shop"}, type="Announced")
        tries.append(order.name)
        if len(tries) == 1:
            raise ZeroDivisionError

    opened = deliver(shop, "a")
    assert (tries, orders(alias)) == (["a", "a"], ["a"])
    assert [each.type for each in opened.sent] == ["Placed"]
    assert count(alias, "onceonly_records") == 1  # that of shop.publish, which a relay sends


def test_what_fails_for_good_is_a_dead_letter(shop: Endpoint, alias: str) -> None:
    """Nothing of it is committed."""

    @shop.handler(retry=Retry(immediate=1, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        Order.objects.using(alias).create(name=order.name)
        raise ValueError("no stock")

    opened = deliver(shop, "a")
    assert (orders(alias), len(opened.failures)) == ([], 2)
    assert "no stock" in reasons(opened)[0]


def test_signals_and_savepoints_belong_to_the_message(shop: Endpoint, alias: str) -> None:
    """A receiver that publishes, and a savepoint that is rolled back with what was published in it."""

    def announce(instance: Order, using: str, **_: Any) -> None:
        if using == alias:
            shop.publish({"order": instance.name}, type="Saved")

    @shop.handler
    def place_order(order: PlaceOrder) -> None:
        Order.objects.using(alias).create(name=order.name)
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            Order.objects.using(alias).create(name="undone")
            raise ZeroDivisionError

    post_save.connect(announce, sender=Order)
    try:
        deliver(shop, "a", "a")
    finally:
        post_save.disconnect(announce, sender=Order)
    assert (orders(alias), count(alias, "onceonly_records")) == (["a"], 1)


def test_the_orm_works_as_elsewhere(shop: Endpoint, alias: str) -> None:
    """Locks, bulk statements, expressions and foreign keys."""
    Order.objects.using(alias).create(name="kept")

    @shop.handler
    def place_order(order: PlaceOrder) -> None:
        own = Order.objects.using(alias)
        locked = own.select_for_update().get(name="kept")
        locked.name = "changed"
        locked.save()
        made = own.bulk_create([Order(name=f"{order.name}{number}") for number in range(3)])
        assert len(made) == len(own.in_bulk([each.pk for each in own.filter(name__startswith=order.name)]))
        own.filter(name="a1").update(name=F("name"))
        Line.objects.using(alias).create(order=own.get(name="a0"))

    deliver(shop, "a", "a")
    assert (orders(alias), count(alias, "django_project_line")) == (["a0", "a1", "a2", "changed"], 1)


def test_a_constraint_that_fails_at_the_commit_is_the_messages_failure(shop: Endpoint, alias: str) -> None:
    """It is counted, and becomes a dead letter with the words of the database."""

    @shop.handler(retry=Retry(immediate=1, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        Order.objects.using(alias).create(name=order.name)
        Line.objects.using(alias).create(order_id=999_999)

    opened = deliver(shop, "a")
    assert (orders(alias), count(alias, "django_project_line")) == ([], 0)
    assert "foreign key" in reasons(opened)[0].lower()


def test_a_swallowed_error_of_the_database_is_not_committed(shop: Endpoint, alias: str) -> None:
    """Django asks to roll back, and PostgreSQL has aborted the transaction."""

    @shop.handler(retry=Retry(immediate=0, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        Order.objects.using(alias).create(name=order.name)
        with suppress(IntegrityError):
            Order.objects.using(alias).bulk_create([Order(pk=Order.objects.using(alias).get().pk, name="b")])

    opened = deliver(shop, "a")
    assert orders(alias) == []
    assert "with transaction.atomic():" in reasons(opened)[0]


def test_functions_of_on_commit_run_after_the_commit(shop: Endpoint, alias: str, caplog: pytest.LogCaptureFixture) -> None:
    """In the handler's thread, once for each message. One that fails is logged, and takes nothing back."""
    called: list[tuple[str, int]] = []
    threads: set[int] = set()

    @shop.handler(retry=Retry(immediate=1))
    def place_order(order: PlaceOrder) -> None:
        threads.add(threading.get_ident())
        Order.objects.using(alias).create(name=order.name)
        transaction.on_commit(partial(note, order.name), using=alias)
        transaction.on_commit(partial(note, f"{order.name} again"), using=alias)
        transaction.on_commit(lambda: 1 // 0, using=alias)
        if order.name == "b" and len(called) < 3:
            raise ValueError

    def note(name: str) -> None:
        threads.add(threading.get_ident())
        called.append((name, len(Order.objects.using(alias).filter(name=name.partition(" ")[0]))))

    with caplog.at_level(logging.WARNING, "onceonly"):
        deliver(shop, "a", "a")
    assert called == [("a", 1), ("a again", 1)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert caplog.text.count("function of on_commit failed") == 1


def test_the_thread_keeps_its_connection(shop: Endpoint, alias: str) -> None:
    """Also where CONN_MAX_AGE is 0, as long as messages come."""
    seen = []

    @shop.handler
    def place_order(_order: PlaceOrder) -> None:
        seen.append(id(connections[alias].connection))
        assert connections[alias].in_atomic_block

    assert connections[alias].settings_dict["CONN_MAX_AGE"] == 0
    deliver(shop, "a", "b", "c")
    assert (len(seen), len(set(seen))) == (3, 1)


def test_a_connection_that_the_server_has_closed_costs_no_message(shop: Endpoint, alias: str) -> None:
    """The next message is handled on a new one, and none is counted as failed."""
    if connections[alias].vendor == "sqlite":
        pytest.skip("the database is in the process")
    numbers: list[int] = []

    @shop.handler
    def place_order(order: PlaceOrder) -> None:
        Order.objects.using(alias).create(name=order.name)
        numbers.append(unit_transactions._session_number(connections[alias]))

    async def steps() -> None:
        async with testing.run(shop) as opened:
            await opened.deliver(PlaceOrder("a"), id="a")
            await asyncio.to_thread(kill, alias, numbers[0])
            await opened.deliver(PlaceOrder("b"), id="b")
            assert opened.failures == []

    asyncio.run(steps())
    assert (orders(alias), len(set(numbers))) == (["a", "b"], 2)


def kill(alias: str, number: int) -> None:
    """End a session of the server, from a thread with a connection of its own."""
    with connections[alias].cursor() as cursor:
        cursor.execute(KILL[connections[alias].vendor].format(number))
    connections[alias].close()


@pytest.mark.parametrize("way", ["close", "commit", "rollback"])
def test_a_handler_cannot_end_its_transaction(shop: Endpoint, alias: str, way: str) -> None:
    """Neither by a statement, nor by closing the connection."""

    @shop.handler(retry=Retry(immediate=0, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        Order.objects.using(alias).create(name=order.name)
        if way == "close":
            connections[alias].close()
            return
        with connections[alias].cursor() as cursor:
            cursor.execute(way.upper())

    opened = deliver(shop, "a")
    assert (orders(alias), len(opened.dead_letters), count(alias, "onceonly_claims")) == ([], 1, 0)


def test_a_second_database_can_be_read_only(shop: Endpoint, alias: str) -> None:
    """Its rows would not be committed with the message, so writing there is refused, also by a router's choice."""

    @shop.handler(retry=Retry(immediate=0, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        Order.objects.using("default").count()
        Order.objects.using(alias).create(name=order.name)
        if order.name == "b":
            Order.objects.using("default").create(name=order.name)

    call_command("migrate", database="default", run_syncdb=True, verbosity=0)
    opened = deliver(shop, "a", "b")
    assert (orders(alias), orders("default")) == (["a"], [])
    assert "writes to database 'default'" in reasons(opened)[0]


def test_a_router_chooses_the_database(shop: Endpoint, alias: str) -> None:
    """Without using(), the ORM asks the routers, also in a handler."""

    class Router:
        def db_for_write(self, model: Any, **_: Any) -> str:
            return alias

        db_for_read = db_for_write

    @shop.handler
    def place_order(order: PlaceOrder) -> None:
        Order.objects.create(name=order.name)

    with override_settings(DATABASE_ROUTERS=[Router()]):
        deliver(shop, "a", "a")
    assert orders(alias) == ["a"]


def test_an_async_handler_uses_the_same_transaction(shop: Endpoint, alias: str) -> None:
    """The asynchronous methods of the ORM come back to the thread of the message."""

    @shop.handler(retry=Retry(immediate=1, delayed=0))
    async def place_order(order: PlaceOrder, context: Context) -> None:
        await asyncio.sleep(0)
        await Order.objects.using(alias).acreate(name=order.name)
        await shop.apublish({"by": "shop"}, type="Announced")
        context.publish({}, type="Placed")
        if order.name == "b":
            raise ValueError

    opened = deliver(shop, "a", "a", "b")
    assert (orders(alias), len(opened.sent), count(alias, "onceonly_records")) == (["a"], 1, 1)
    assert len(opened.dead_letters) == 1


def test_what_a_handler_cannot_have_is_refused_at_start(shop: Endpoint) -> None:
    """Sessions, batches and isolation levels, each with what to do instead."""

    @shop.handler
    def place_order(order: PlaceOrder, session: Session) -> None: ...

    @shop.handler(type="Batch", batch=True)
    def place_all(orders: list[PlaceOrder]) -> None: ...

    @shop.handler(type="Serial", isolation="SERIALIZABLE")
    def place_alone(order: PlaceOrder) -> None: ...

    with pytest.raises(InvalidHandler) as refused:
        shop.topology()
    text = str(refused.value)
    assert "session: Session is not available here: handlers of this endpoint use Django's ORM" in text
    assert "batch=True is not possible here: each message has a transaction of its own" in text
    assert "isolation= is not possible here" in text


def test_what_an_endpoint_cannot_have_is_refused(shop: Endpoint, alias: str) -> None:
    """Responders, an isolation level, and another store."""
    with pytest.raises(InvalidHandler, match="cannot have responders"):
        shop.responder(lambda: None)
    with pytest.raises(SetupError, match="set isolation_level in the OPTIONS"):
        Endpoint("shop", database=alias, isolation="SERIALIZABLE")
    place(shop, alias)

    async def elsewhere() -> None:
        from dataclasses import replace  # noqa: PLC0415 - of this test

        async with host_of(shop).opened(settings=replace(shop.settings, store="sqlite://")):
            raise AssertionError

    with pytest.raises(SetupError, match="remove --store"):
        asyncio.run(elsewhere())


@pytest.mark.parametrize("is_pooled", [False, True], ids=["direct", "pooled"])
def test_a_session_waits_for_locks_as_the_store_does(shop: Endpoint, alias: str, is_pooled: bool) -> None:  # noqa: FBT001 - a parameter
    """Behind a pooler the next transaction may be another client's, so nothing stays in the session, and none is ended."""
    if connections[alias].vendor != "postgresql":
        pytest.skip("only PostgreSQL is asked for its setting")
    seen: list[str] = []

    def look() -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            seen.append(cursor.fetchone()[0])

    @shop.handler
    def place_order(_order: PlaceOrder) -> None:
        look()
        transaction.on_commit(look, using=alias)

    settings = connections.settings[alias]
    settings["DISABLE_SERVER_SIDE_CURSORS"] = is_pooled
    deliver(shop, "a")
    assert seen == ["5s", "0" if is_pooled else "5s"]


def test_each_way_to_deduplicate_works_on_djangos_connection(alias: str) -> None:
    """Tokens, and a report of what deduplication would do; without it, a copy is handled again."""
    tokens = Tokens(subscribers={"Placed": ["billing"]})
    kinds: list[tuple[Any, int]] = [(tokens, 1), (History(), 1), (Shadow(), 2), (Off(), 2)]
    for deduplication, rows in kinds:
        name = f"shop-{type(deduplication).__name__.lower()}"
        shop = Endpoint(name, database=alias, transport=f"memory://{uuid4().hex}", deduplication=deduplication)
        place(shop, alias)
        opened = deliver(shop, "a", copies=2)
        assert (orders(alias), opened.dead_letters) == (["a"] * rows, ()), deduplication
        ENDPOINTS.discard(shop)
        call_command("flush", database=alias, interactive=False, verbosity=0)


def test_a_connection_that_commits_nothing_is_refused(shop: Endpoint, alias: str) -> None:
    """With AUTOCOMMIT = False, `atomic()` would leave the commit to others, and the message would be acknowledged."""
    place(shop, alias)
    settings = connections.settings[alias]
    settings["AUTOCOMMIT"] = False
    try:
        with pytest.raises(SetupError, match="remove AUTOCOMMIT = False"):
            deliver(shop, "a")
    finally:
        settings["AUTOCOMMIT"] = True
    assert (orders(alias), count(alias, "onceonly_claims")) == ([], 0)


def test_a_lock_that_is_not_had_is_no_failure_of_the_message(shop: Endpoint, alias: str) -> None:
    """It runs again, and is not counted."""
    if connections[alias].vendor == "sqlite":
        pytest.skip("a writer locks the whole database")
    Order.objects.using(alias).create(name="kept")
    tries: list[str] = []
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(using=alias):
            Order.objects.using(alias).select_for_update().get(name="kept")
            held.set()
            free.wait(30)
        connections[alias].close()

    @shop.handler(retry=Retry(immediate=0, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        tries.append(order.name)
        if len(tries) > 1:
            free.set()
            holder.join()
        Order.objects.using(alias).select_for_update(nowait=len(tries) == 1).get(name="kept")
        Order.objects.using(alias).create(name=order.name)

    async def test(opened: testing.EndpointRun) -> testing.EndpointRun:
        await opened.deliver(PlaceOrder("a"), id="a")
        opened.clock.advance(60_000)
        await opened.settle()
        return opened

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    try:
        opened = run(shop, test, raise_failures=False)
    finally:
        free.set()
        holder.join()
    assert (orders(alias), opened.dead_letters, len(tries)) == (["a", "kept"], (), 2)


def test_an_outage_that_the_handler_meets_is_no_failure_of_the_message(shop: Endpoint, alias: str) -> None:
    """The message comes again, as often as it takes."""
    if connections[alias].vendor == "sqlite":
        pytest.skip("the database is in the process")
    tries: list[str] = []

    @shop.handler(retry=Retry(immediate=0, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        tries.append(order.name)
        Order.objects.using(alias).create(name=order.name)
        if len(tries) < 3:
            cut = threading.Thread(target=kill, args=(alias, unit_transactions._session_number(connections[alias])))
            cut.start()
            cut.join()
            Order.objects.using(alias).count()

    opened = deliver(shop, "a")
    assert (orders(alias), len(tries), opened.dead_letters) == (["a"], 3, ())


def test_a_deadlock_that_is_swallowed_commits_nothing(shop: Endpoint, alias: str) -> None:
    """MariaDB has rolled back all, the claim included, and would begin anew with the next statement."""
    if connections[alias].vendor != "mysql":
        pytest.skip("only there a failed statement rolls back the whole transaction")

    @shop.handler(retry=Retry(immediate=0, delayed=0))
    def place_order(_order: PlaceOrder) -> None:
        with connections[alias].cursor() as cursor:
            with suppress(OperationalError):
                cursor.execute("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'")
            cursor.execute("INSERT INTO django_project_order (name) VALUES ('after')")

    opened = deliver(shop, "a")
    assert (orders(alias), len(opened.dead_letters)) == ([], 1)


def test_records_are_where_the_relay_looks(shop: Endpoint, alias: str) -> None:
    """Also if the handler has changed the search_path, as for a tenant."""
    if connections[alias].vendor != "postgresql":
        pytest.skip("only PostgreSQL has a search_path")
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS tenant")
        cursor.execute("CREATE TABLE IF NOT EXISTS tenant.onceonly_records (LIKE public.onceonly_records)")
        cursor.execute("CREATE TABLE IF NOT EXISTS tenant.django_project_order (LIKE public.django_project_order)")

    @shop.handler
    def place_order(order: PlaceOrder, context: Context) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("SET search_path TO tenant")
            cursor.execute("INSERT INTO django_project_order (id, name) VALUES (1, %s)", [order.name])
        context.publish({}, type="Placed")

    opened = deliver(shop, "a", "a", "b")
    assert len(opened.sent) == 2
    assert (count(alias, "tenant.onceonly_records"), count(alias, "tenant.django_project_order")) == (0, 2)
    with connections[alias].cursor() as cursor:
        cursor.execute("DROP SCHEMA tenant CASCADE")


@pytest.mark.parametrize("blocks", [False, True], ids=["returns", "never returns"])
def test_a_handler_whose_time_is_over_is_undone(shop: Endpoint, alias: str, blocks: bool) -> None:  # noqa: FBT001 - a parameter
    """It is refused its next statement. If it does not return, the server ends its session, so that nothing stays locked."""
    if blocks and connections[alias].vendor == "sqlite":
        pytest.skip("its lock cannot be taken from another connection")
    entered, out, done = threading.Event(), threading.Event(), threading.Event()
    tries: list[str] = []

    @shop.handler(timeout=1, retry=Retry(immediate=3, delayed=0))
    def place_order(order: PlaceOrder) -> None:
        tries.append(order.name)
        Order.objects.using(alias).create(name=order.name)
        if len(tries) == 1:
            entered.set()
            out.wait(60)
            try:
                Order.objects.using(alias).create(name="late")
            finally:
                done.set()

    async def test() -> None:
        await asyncio.to_thread(send, shop, alias)
        async with host_of(shop).running():
            assert await asyncio.to_thread(entered.wait, 30)
            if not blocks:
                await asyncio.to_thread(wait_for_expiry)
                out.set()
            await asyncio.to_thread(wait_until, lambda: orders(alias) == ["a"], alias)
            out.set()
            await asyncio.to_thread(done.wait, 30)

    def wait_for_expiry() -> None:
        threading.Event().wait(1.2)  # longer than its time: what follows is refused, however long it takes

    asyncio.run(test())
    assert (orders(alias), tries) == (["a"], ["a", "a"])


def send(shop: Endpoint, alias: str, *names: str) -> None:
    """Send messages to the endpoint itself."""
    with transaction.atomic(using=alias):
        for name in names or ("a",):
            shop.send(PlaceOrder(name), to=shop.name, id=name)
    connections[alias].close()


def wait_until(is_so: Callable[[], bool], alias: str) -> None:
    """Wait for rows that a worker commits, in a thread."""
    try:
        for _ in range(1200):
            if is_so():
                return
            threading.Event().wait(0.05)
    finally:
        connections[alias].close()
    raise AssertionError(f"not within a minute: {orders(alias)}")


def test_a_worker_handles_messages_side_by_side(shop: Endpoint, alias: str) -> None:
    """On a server four at once, each on a connection of its own, and each once."""
    at_once = 1 if connections[alias].vendor == "sqlite" else 4
    together = threading.Barrier(at_once, timeout=60)
    numbers: set[int] = set()

    @shop.handler
    def place_order(order: PlaceOrder, context: Context) -> None:
        numbers.add(id(connections[alias]))
        if order.name in first:
            together.wait()
        Order.objects.using(alias).create(name=order.name)
        if "again" not in order.name:
            context.send(PlaceOrder(f"{order.name} again"), to=shop.name)

    first = [f"first {number}" for number in range(at_once)]
    names = [*first, *(f"order {number}" for number in range(20))]

    async def test() -> None:
        await asyncio.to_thread(send, shop, alias, *names)
        async with host_of(shop).running():
            await asyncio.to_thread(wait_until, lambda: len(orders(alias)) == 2 * len(names), alias)

    asyncio.run(test())
    assert orders(alias) == sorted([*names, *(f"{name} again" for name in names)])
    assert at_once <= len(numbers) <= 2 * at_once
