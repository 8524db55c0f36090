"""A Django project as users have it: migrations, checks, the command line, and tests of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

import django
import pytest
from sqlalchemy import make_url

from onceonly.errors import SetupError
from tests.django_project import alias_of, set_up
from tests.servers.available import postgresql_database

set_up()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402 - Django is set up before
from django.core.management import CommandError, call_command  # noqa: E402 - the same
from django.db import connections, transaction  # noqa: E402 - the same
from django.test.utils import override_settings  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint, checks  # noqa: E402 - the same
from onceonly.integrations.django.configuration import store_url  # noqa: E402 - the same
from onceonly.integrations.django.endpoint import ENDPOINTS  # noqa: E402 - the same
from onceonly.integrations.django.management.commands.onceonly import with_endpoints  # noqa: E402 - the same
from onceonly.integrations.django.schema import SCHEMAS  # noqa: E402 - the same
from tests.django_project.models import Order  # noqa: E402 - the same

FILES = {
    "manage.py": """
        import os
        import sys

        from django.core.management import execute_from_command_line

        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
        execute_from_command_line(sys.argv)
    """,
    "site_settings.py": """
        import json
        import os
        import sys

        import django

        assert django.__file__ == os.environ["TEST_DJANGO"], "another version than that of the tests"
        SECRET_KEY = "of a test"
        INSTALLED_APPS = ["onceonly.integrations.django", "shop"]
        DATABASES = {"default": json.loads(os.environ["TEST_DATABASE"])}
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        ROOT_URLCONF = "shop.urls"
        USE_TZ = True
        ONCEONLY = {
            "ENDPOINTS": ["shop.endpoints:shop"],
            "TRANSPORT": os.environ["TEST_TRANSPORT"],
            "SENDING_THREAD": "test" in sys.argv,
        }
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models

        class Order(models.Model):
            name = models.CharField(max_length=80)
    """,
    "shop/endpoints.py": """
        from onceonly import Context
        from onceonly.integrations.django import Endpoint
        from shop.models import Order

        shop = Endpoint("shop", relay_after=0.1)

        @shop.handler(type="Ignored")
        async def ignore(body: dict[str, str], context: Context) -> None:
            assert Order is not None
    """,
    "shop/urls.py": """
        from django.db import transaction
        from django.http import HttpResponse
        from django.urls import path
        from onceonly.integrations.django import idempotent
        from shop.endpoints import shop
        from shop.models import Order

        @idempotent(shop)
        def place(request):
            order = Order.objects.create(name="a")
            shop.publish({"order": order.pk}, type="Placed")
            shop.send({"order": order.pk}, to="shop", type="Ignored")
            return HttpResponse("placed", status=201)

        urlpatterns = [path("orders", place)]
    """,
    "shop/tests.py": """
        from django.db import transaction
        from django.test import TestCase, TransactionTestCase
        from onceonly.errors import TransactionMisused
        from onceonly.integrations.django import captured
        from shop.endpoints import shop
        from shop.models import Order

        class Placing:
            def test_an_order_is_placed_once(self):
                with captured(shop) as published:
                    found = [self.client.post("/orders", headers={"Idempotency-Key": "k"}) for _ in range(2)]
                self.assertEqual([each.status_code for each in found], [201, 201])
                self.assertEqual(Order.objects.count(), 1)
                self.assertEqual([each.to for each in published.messages], [None, "shop"])
                self.assertEqual(published.bodies[0], {"order": Order.objects.get().pk})

            def test_it_is_placed_once_in_the_next_test_as_well(self):
                self.test_an_order_is_placed_once()

            def test_what_is_rolled_back_is_not_captured(self):
                with captured(shop) as published:
                    with self.assertRaises(ZeroDivisionError), transaction.atomic():
                        shop.publish({}, type="Placed")
                        1 / 0
                self.assertEqual(published.bodies, [])

            def test_outside_of_a_transaction_nothing_can_be_published(self):
                with self.assertRaises(TransactionMisused):
                    shop.publish({}, type="Placed")

        class InOneTransaction(Placing, TestCase):
            pass

        class WithCommits(Placing, TransactionTestCase):
            pass
    """,
}


class Project:
    """A project in a folder, whose commands run in processes of their own."""

    def __init__(self, folder: Path, url: str) -> None:
        place = make_url(url)
        vendor = {"sqlite": "sqlite3", "postgresql": "postgresql"}[place.get_backend_name()]
        self.database = {
            "ENGINE": f"django.db.backends.{vendor}",
            "NAME": place.database,
            "USER": place.username or "",
            "PASSWORD": place.password or "",
            "HOST": place.host or "",
            "PORT": str(place.port or ""),
        }
        self.folder = folder
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(dedent(text))

    def manage(self, *arguments: str, fails: bool = False) -> str:
        """Run a command, and return all that it prints."""
        environment = {
            **os.environ,
            "TEST_DATABASE": json.dumps(self.database),
            "TEST_DJANGO": django.__file__,
            "TEST_TRANSPORT": f"sqlite:///{self.folder}/queue.db",
            "PYTHONWARNINGS": "error::ResourceWarning",
        }
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """Make a project."""
    if request.param == "sqlite":
        yield Project(tmp_path, f"sqlite:///{tmp_path}/db.sqlite3")
        return
    with postgresql_database() as url:
        yield Project(tmp_path, url)


@pytest.mark.slow
def test_a_project_from_migrate_to_zero(project: Project) -> None:
    """It is checked, migrated, asked for its state, drained, and left."""
    assert "onceonly.W009" in project.manage("check", "--database", "default")
    project.manage("migrate", "--run-syncdb")
    assert "no issues" in project.manage("check", "--database", "default")
    assert "No changes detected in app 'onceonly'" in project.manage("makemigrations", "onceonly", "--check", "--dry-run")
    project.manage("onceonly", "schema", "create")
    publish = "from shop.endpoints import shop; from django.db import transaction as t\nwith t.atomic(): "
    project.manage("shell", "-c", publish + "shop.send({}, to='shop', type='Ignored')")
    (status,) = json.loads(project.manage("onceonly", "status", "--json", "--settings=site_settings"))
    assert (status["endpoint"], status["records"]) == ("shop", 1)
    refused = project.manage("migrate", "onceonly", "zero", fails=True)
    assert "1 records whose messages were not sent" in refused
    assert "Traceback" not in refused
    (status,) = json.loads(project.manage("onceonly", "status", "--json"))
    assert status["records"] == 1
    project.manage("onceonly", "run", "--drain")
    project.manage("migrate", "onceonly", "zero")
    assert "do not exist" in project.manage("onceonly", "status", fails=True)
    project.manage("migrate", "onceonly")
    assert json.loads(project.manage("onceonly", "status", "--json"))[0]["records"] == 0


@pytest.mark.slow
def test_tests_of_a_project_work_in_both_kinds_of_test_cases(project: Project) -> None:
    """In a database that the runner creates: on SQLite in memory."""
    told = project.manage("test")
    assert "Ran 8 tests" in told
    assert "OK" in told


def test_migrations_create_what_the_command_creates(tmp_path: Path) -> None:
    """All tables, columns and indexes. And there is a migration for the newest version of each component."""
    from onceonly.integrations.django.migrations import __path__ as folders  # noqa: PLC0415 - next to its use

    with alias_of("migrated", f"sqlite:///{tmp_path}/migrated.db"):
        call_command("migrate", "onceonly", database="migrated", verbosity=0)
        with connections["migrated"].cursor() as cursor:
            cursor.execute("SELECT component, version FROM onceonly_schema")
            assert dict(cursor.fetchall()) == {each.component: each.version for each in SCHEMAS.values()}
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE name LIKE 'onceonly%' AND sql IS NOT NULL")
            migrated = {name: sql for name, sql in cursor.fetchall() if not name.startswith("onceonly_task_results")}
    command = [sys.executable, "-m", "onceonly", "schema", "create", f"sqlite:///{tmp_path}/created.db"]
    subprocess.run([*command, *(f"--component={name}" for name in SCHEMAS)], check=True, capture_output=True)
    with alias_of("created", f"sqlite:///{tmp_path}/created.db"), connections["created"].cursor() as cursor:
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE name LIKE 'onceonly%' AND sql IS NOT NULL")
        assert migrated == dict(cursor.fetchall())
    texts = "".join(each.read_text() for each in Path(folders[0]).glob("0*.py"))
    for name, schema in SCHEMAS.items():
        assert f'UpgradeTables("{name}", {schema.version}' in texts, "add a migration for the new version"


@pytest.mark.parametrize("how", [{}, {"inhibit_post_migrate": True}])
def test_flush_empties_a_database_that_has_no_tables_of_models(alias: str, how: dict[str, Any]) -> None:
    """Django sends no signal then, nor in a `TransactionTestCase` with `serialized_rollback`."""
    call_command("migrate", "onceonly", database=alias, verbosity=0)
    (shop,) = (each for each in ENDPOINTS if each.database == alias)
    with transaction.atomic(using=alias):
        shop.publish({}, type="Placed")
    call_command("flush", database=alias, interactive=False, verbosity=0, **how)
    with connections[alias].cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM onceonly_records").fetchone() == (0,)


@pytest.mark.parametrize(("answer", "left"), [("no", 1), ("yes", 0)])
def test_a_person_is_asked_before_a_flush(alias: str, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    """Once, and nothing is deleted without `yes`."""
    call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    (shop,) = (each for each in ENDPOINTS if each.database == alias)
    with transaction.atomic(using=alias):
        Order.objects.using(alias).create(name="a")
        shop.publish({}, type="Placed")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or answer)
    call_command("flush", database=alias, verbosity=0, stdout=StringIO())
    assert "checked.db" in asked.pop()
    assert not asked
    with connections[alias].cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM onceonly_records").fetchone() == (left,)
    assert Order.objects.using(alias).count() == left


def found_by(**settings: Any) -> list[str]:
    """Return the ids of what the checks find."""
    with override_settings(**settings):
        return [each.id for each in checks.check_settings()]


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[str]:
    """Give an empty file an alias, and an endpoint to it."""
    with alias_of("checked", f"sqlite:///{tmp_path}/checked.db"):
        kept = Endpoint("shop", database="checked", transport="memory://checked")
        yield kept.database


@pytest.mark.usefixtures("alias")
def test_good_settings_have_no_findings() -> None:
    """The control of the next tests."""
    assert found_by() == []


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"AUTOCOMMIT": False}, "onceonly.E004"),
        ({"ATOMIC_REQUESTS": True}, "onceonly.W007"),
        ({"CONN_MAX_AGE": 60}, "onceonly.W008"),
        ({"CONN_MAX_AGE": None}, "onceonly.W008"),
        ({"OPTIONS": {"pool": True}}, "onceonly.W008"),
    ],
)
def test_settings_of_a_database_that_matter_are_found(alias: str, settings: dict[str, Any], found: str) -> None:
    """Each has a finding of its own."""
    own = connections[alias].settings_dict
    before = dict(own)
    own.update(settings)
    try:
        assert found_by() == [found]
        own["CONN_HEALTH_CHECKS"] = True
        assert found_by() == ([found] if found != "onceonly.W008" else [])
    finally:
        own.clear()
        own.update(before)


class Elsewhere:
    """A router that has our tables in the default database only."""

    def allow_migrate(self, db: str, app_label: str, **_hints: Any) -> bool | None:
        """Decide for our app."""
        return db == "default" if app_label == "onceonly" else None


def test_a_router_that_keeps_the_tables_away_is_found(alias: str) -> None:
    """And obeyed: no table is created there."""
    routers = [f"{__name__}.Elsewhere"]
    assert found_by(DATABASE_ROUTERS=routers) == ["onceonly.E006"]
    with override_settings(DATABASE_ROUTERS=routers):
        call_command("migrate", "onceonly", database=alias, verbosity=0)
    assert [each.id for each in checks.check_tables(databases=[alias])] == ["onceonly.W009"]


def test_missing_tables_are_found(alias: str) -> None:
    """Where a database is asked for; `migrate` is not hindered."""
    assert [each.id for each in checks.check_tables(databases=[alias])] == ["onceonly.W009"]
    assert checks.check_tables(databases=None) == []
    call_command("migrate", "onceonly", "0003", database=alias, verbosity=0)
    assert [each.id for each in checks.check_tables(databases=[alias])] == ["onceonly.W009"]
    call_command("migrate", "onceonly", database=alias, verbosity=0)
    assert checks.check_tables(databases=[alias]) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "must be a dict"),
        ({"ENDPOINT": "shop:shop"}, "'ENDPOINT' is unknown: use ENDPOINTS"),
        ({"ENDPOINTS": "shop:shop"}, "ENDPOINTS must be a list"),
        ({"ENDPOINTS": ["shop"]}, "write module:attribute"),
        ({"DATABASE": "nowhere"}, "which DATABASES does not have"),
        ({"SENDING_THREAD": 1}, "SENDING_THREAD must be a bool"),
    ],
)
def test_wrong_settings_are_named(given: Any, words: str) -> None:
    """By an endpoint, and by the check."""
    assert found_by(ONCEONLY=given) == ["onceonly.E001"]
    with override_settings(ONCEONLY=given), pytest.raises(ImproperlyConfigured, match=words):
        Endpoint("shop", transport="memory://x")


def test_an_endpoint_that_does_not_exist_is_named() -> None:
    """By the check and by the command."""
    settings = {"ONCEONLY": {"ENDPOINTS": ["tests.nowhere:shop"]}}
    assert found_by(**settings) == ["onceonly.E002"]
    with override_settings(**settings), pytest.raises(CommandError, match="cannot be imported"):
        with_endpoints(["status"])


ENDPOINT = None


def test_commands_get_the_endpoints_of_the_project() -> None:
    """Behind their names, unless they name one."""
    global ENDPOINT  # noqa: PLW0603 - a setting names it
    ENDPOINT = Endpoint("shop", transport="memory://x")
    place = "onceonly.integrations.django.endpoints:shop"
    with override_settings(ONCEONLY={"ENDPOINTS": [f"{__name__}:ENDPOINT"]}):
        assert with_endpoints(["status", "--json"]) == ["status", place, "--json"]
        assert with_endpoints(["dead", "retry", "--all"]) == ["dead", "retry", place, "--all"]
        assert with_endpoints(["dead", "show", "1a"]) == ["dead", "show", place, "1a"]
        assert with_endpoints(["status", "shop.endpoints:other"]) == ["status", "shop.endpoints:other"]
        assert with_endpoints(["dead", "list", "sqlite:///x.db"]) == ["dead", "list", "sqlite:///x.db"]
        for given in ([], ["--help"], ["run", "--help"], ["metrics", "rules"], ["nothing"]):
            assert with_endpoints(given) == given
    with override_settings(ONCEONLY={}), pytest.raises(CommandError, match="no endpoint is named"):
        with_endpoints(["status"])
    ENDPOINTS.discard(ENDPOINT)  # checks and pages of other tests would ask for its database


@pytest.mark.parametrize(
    ("url", "more", "expected"),
    [
        (
            "postgresql://u:p%40@db:6000/shop",
            {"OPTIONS": {"sslmode": "require"}},
            "postgresql+psycopg://u:p%40@db:6000/shop?sslmode=require",
        ),
        ("postgresql://u@/shop", {}, "postgresql+psycopg://u@localhost/shop"),
        ("mysql://u@db/shop", {"OPTIONS": {"ssl": {"ca": "/ca.pem"}}}, "mysql://u@db/shop?ssl-ca=%2Fca.pem"),
    ],
)
def test_the_url_of_a_store_is_that_of_its_alias(url: str, more: dict[str, Any], expected: str) -> None:
    """With user, password, port and TLS."""
    with alias_of("named", url, **more):
        assert store_url("named") == expected


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"HOST": "/var/run/postgresql"}, "socket"),
        ({"OPTIONS": {"options": "-c search_path=shop"}}, "search_path"),
        ({"OPTIONS": {"service": "shop"}}, "service file"),
    ],
)
def test_settings_that_no_url_can_express_are_refused(more: dict[str, Any], words: str) -> None:
    """With what to do."""
    with alias_of("named", "postgresql://u@db/shop", **more):
        with pytest.raises(ImproperlyConfigured, match=f"{words}.*store="):
            Endpoint("shop", database="named", transport="memory://x")
        given = Endpoint("shop", database="named", store="postgresql://u@db/shop?schema=shop", transport="memory://x")
        assert given.settings.store == "postgresql://u@db/shop?schema=shop"


def test_an_alias_that_does_not_exist_is_refused() -> None:
    """And not an error of something later."""
    with pytest.raises(ImproperlyConfigured, match="no alias 'nowhere'"):
        Endpoint("shop", database="nowhere", transport="memory://x")
    with pytest.raises(SetupError, match="invalid settings"):
        Endpoint("shop", transport="nothing://x")
