"""Several tenants in one project: a database for each, chosen by a header, or a schema for each, chosen by `search_path`."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly.errors import SchemaMissing, SetupError
from tests.django_project import alias_of, set_up
from tests.servers.available import postgresql_database, run_apart

set_up()

from django.core.management import CommandError, call_command  # noqa: E402 - Django is set up before
from django.db import connections, transaction  # noqa: E402 - the same
from django.http import HttpResponse, HttpResponseNotFound  # noqa: E402 - the same
from django.test import Client  # noqa: E402 - the same
from django.test.utils import override_settings  # noqa: E402 - the same
from django.urls import path  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint, checks, idempotent  # noqa: E402 - the same
from tests.django_project.models import Order  # noqa: E402 - the same

TENANTS = ("acme", "globex")
SHOPS: dict[str, Endpoint] = {}


def count(alias: str, table: str) -> int:
    """Count rows past the library."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - of this test
        return int(cursor.fetchone()[0])


# a database for each tenant


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[dict[str, Endpoint]]:
    """Make a database and an endpoint for each tenant."""
    with ExitStack() as stack:
        for tenant in TENANTS:
            stack.enter_context(alias_of(tenant, f"sqlite:///{tmp_path}/{tenant}.db"))
            call_command("migrate", database=tenant, run_syncdb=True, verbosity=0)
            SHOPS[tenant] = Endpoint(f"shop-{tenant}", database=tenant, transport="memory://tenants")
        yield SHOPS
        SHOPS.clear()


def test_each_tenant_has_its_own_rows_messages_and_keys(shops: dict[str, Endpoint]) -> None:
    """The same key of two tenants is two keys. A tenant that does not exist has no view."""

    def place_in(shop: Endpoint) -> Any:
        @idempotent(shop)
        def place(_request: Any) -> HttpResponse:
            order = Order.objects.using(shop.database).create(name=shop.name)
            shop.publish({"order": order.pk}, type="Placed")
            return HttpResponse(shop.name, status=201)

        return place

    views = {tenant: place_in(shop) for tenant, shop in shops.items()}

    def choose(request: Any) -> HttpResponse:
        view = views.get(request.headers.get("X-Tenant", ""))
        found: HttpResponse = HttpResponseNotFound() if view is None else view(request)
        return found

    def post(tenant: str) -> tuple[int, bytes]:
        response = Client().post("/orders", headers={"X-Tenant": tenant, "Idempotency-Key": "k"})
        return response.status_code, response.content

    with override_settings(ROOT_URLCONF=(path("orders", choose),)):
        for tenant in TENANTS * 2:
            assert post(tenant) == (201, f"shop-{tenant}".encode())
        assert post("other")[0] == 404
    for tenant in TENANTS:
        assert [count(tenant, f"onceonly_{table}") for table in ("records", "keys")] == [1, 1]
        assert list(Order.objects.using(tenant).values_list("name", flat=True)) == [f"shop-{tenant}"]


SAME_A: Any = None
SAME_B: Any = None


def test_two_endpoints_of_one_name_cannot_both_be_run(shops: dict[str, Endpoint]) -> None:
    """Commands find endpoints by name, and both would have one queue."""
    from onceonly.integrations.django.endpoints import load_endpoints  # noqa: PLC0415 - it loads those of the settings

    global SAME_A, SAME_B
    SAME_A, SAME_B = (Endpoint("shop", database=tenant, transport="memory://tenants") for tenant in shops)
    settings: dict[str, Any] = {"ONCEONLY": {"ENDPOINTS": [f"{__name__}:SAME_A", f"{__name__}:SAME_B"]}}
    with override_settings(**settings):
        with pytest.raises(SetupError, match="two endpoints named 'shop'"):
            load_endpoints()
        assert [each.id for each in checks.check_settings()] == ["onceonly.E002"]


# a schema for each tenant


@pytest.fixture
def schemas() -> Iterator[str]:
    """Make a database with the tables in `public`, and two schemas that have orders of their own."""
    with postgresql_database() as url, alias_of("schemas", url) as alias:
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        with connections[alias].cursor() as cursor:
            for tenant in TENANTS:
                cursor.execute(
                    f"CREATE SCHEMA {tenant}; CREATE TABLE {tenant}.django_project_order (LIKE"
                    " public.django_project_order INCLUDING ALL)"
                )
        yield alias


@contextmanager
def search_path(alias: str, *schemas: str) -> Iterator[None]:
    """Choose schemas for a block, as packages for tenants do for a request."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SET search_path TO {', '.join(schemas)}")
    try:
        yield
    finally:
        with connections[alias].cursor() as cursor:
            cursor.execute("RESET search_path")


def place(shop: Endpoint, key: str = "k") -> bool:
    """Place an order once for a key. Returns whether the key was known."""
    with shop.atomic(idempotency_key=key) as entry:
        if not entry.is_known:
            Order.objects.using(shop.database).create(name="a")
            shop.publish({"order": "a"}, type="Placed")
        return entry.is_known


def pending(shop: Endpoint) -> int:
    """Count what a relay finds, on a connection of its own."""

    async def ask() -> int:
        engine = create_async_engine(make_url(str(shop.settings.store)).set(drivername="postgresql+psycopg"))
        try:
            async with engine.connect() as connection:
                return int((await connection.execute(text("SELECT count(*) FROM onceonly_records"))).scalar_one())
        finally:
            await engine.dispose()

    found: list[int] = []

    async def note() -> None:
        found.append(await ask())

    run_apart(note())
    return found[0]


@pytest.mark.parametrize("rest", [("public",), ()])
def test_rows_are_in_the_schema_of_the_tenant_and_messages_where_the_relay_reads(schemas: str, rest: Sequence[str]) -> None:
    """Whether `public` is in the path or not, and whichever schema the connection had before."""
    shop = Endpoint("shop", database=schemas, transport="memory://tenants")
    for number, tenant in enumerate((*TENANTS, *TENANTS)):
        with search_path(schemas, tenant, *rest):
            assert not place(shop, f"k{number}")
            assert place(shop, f"k{number}")
            with transaction.atomic(using=schemas):
                shop.publish({"order": "b"}, type="Placed")
    assert [count(schemas, f"{each}.django_project_order") for each in (*TENANTS, "public")] == [2, 2, 0]
    assert pending(shop) == 8


def test_tables_in_the_schema_of_a_tenant_get_no_messages(schemas: str) -> None:
    """No relay would read them there."""
    with connections[schemas].cursor() as cursor:
        for table in ("records", "keys", "schema"):
            cursor.execute(f"CREATE TABLE acme.onceonly_{table} (LIKE public.onceonly_{table} INCLUDING ALL)")
        cursor.execute("INSERT INTO acme.onceonly_schema SELECT * FROM public.onceonly_schema")
    shop = Endpoint("shop", database=schemas, transport="memory://tenants")
    with search_path(schemas, "acme", "public"):
        assert not place(shop)
    assert (count(schemas, "acme.onceonly_records"), pending(shop)) == (0, 1)


def test_tables_that_are_only_in_the_schema_of_a_tenant_are_missing(schemas: str) -> None:
    """A relay would find none."""
    with connections[schemas].cursor() as cursor:
        for table in ("records", "keys", "schema"):
            cursor.execute(f"ALTER TABLE public.onceonly_{table} SET SCHEMA acme")
    shop = Endpoint("shop", database=schemas, transport="memory://tenants")
    missing = pytest.raises(SchemaMissing, match="'schemas' lacks tables")
    with search_path(schemas, "acme", "public"), transaction.atomic(using=schemas), missing:
        shop.publish({}, type="Placed")


def test_migrations_create_no_tables_in_the_schema_of_a_tenant(schemas: str) -> None:
    """The app belongs to what tenants share."""
    with search_path(schemas, "acme", "public"):
        with connections[schemas].cursor() as cursor:
            cursor.execute("CREATE TABLE acme.django_migrations (LIKE public.django_migrations INCLUDING ALL)")
        with pytest.raises(CommandError, match=r"'acme'.*SHARED_APPS"):
            call_command("migrate", "onceonly", database=schemas, verbosity=0)
    assert count(schemas, "pg_tables WHERE schemaname = 'acme' AND tablename LIKE 'onceonly%'") == 0


def test_a_tenant_can_have_keys_of_its_own(schemas: str) -> None:
    """Keys of all schemas are in one table, so a view names the tenant as scope."""
    shop = Endpoint("shop", database=schemas, transport="memory://tenants")

    @idempotent(shop, scope=lambda request: request.headers["X-Tenant"])
    def view(request: Any) -> HttpResponse:
        Order.objects.using(schemas).create(name="a")
        return HttpResponse(request.headers["X-Tenant"], status=201)

    with override_settings(ROOT_URLCONF=(path("orders", view),)):
        for tenant in TENANTS * 2:
            with search_path(schemas, tenant, "public"):
                response = Client().post("/orders", headers={"X-Tenant": tenant, "Idempotency-Key": "k"})
            assert (response.status_code, response.content) == (201, tenant.encode())
    assert [count(schemas, f"{each}.django_project_order") for each in TENANTS] == [1, 1]
