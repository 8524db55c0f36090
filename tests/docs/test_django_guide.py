"""The project of the guide for Django: its files, as they are on the page, and its own tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.test_documentation import snippet

PAGE = ROOT / "docs" / "how-to" / "django.md"
FILES = tuple(
    f"shop/{name}.py"
    for name in (
        "endpoints",
        "placing",
        "views",
        "more_views",
        "importing",
        "handlers",
        "tasks",
        "tenants",
        "apps",
        "tests",
        "handler_tests",
        "celery",
        "__init__",
        "ordering",
    )
)
OWN = {
    "manage.py": "import os, sys\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'project')\n"
    "from django.core.management import execute_from_command_line\nexecute_from_command_line(sys.argv)\n",
    "project.py": "from site_settings import *\nSECRET_KEY = 'x'\nROOT_URLCONF = 'shop.urls'\nUSE_TZ = True\n"
    "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'\nREST_FRAMEWORK = {'UNAUTHENTICATED_USER': None}\n"
    "DATABASES = {alias: {'ENGINE': 'django.db.backends.sqlite3', 'NAME': f'{alias}.sqlite3',\n"
    "    'TEST': {'NAME': f'test_{alias}.sqlite3'}} for alias in ('default', 'acme', 'globex')}\n"
    "INSTALLED_APPS += ['billing']\n",
    "billing/__init__.py": "",
    "billing/models.py": "from django.db import models\nclass Invoice(models.Model):\n    order = models.IntegerField()\n"
    "    is_printed = models.BooleanField(default=False)\n",
    "shop/models.py": "from django.db import models\nclass Order(models.Model):\n    name = models.CharField(max_length=80)\n",
    "shop/urls.py": "from django.urls import path\nfrom shop import ordering, tenants\nfrom shop.views import place_order\n"
    "from shop.more_views import PlaceOrder, PlaceOrderByREST, api\n"
    "urlpatterns = [path('orders', place_order), path('a', PlaceOrder.as_view()), path('b', PlaceOrderByREST.as_view()), "
    "path('api/', api.urls), path('tenants', tenants.place_order), path('plain', ordering.place_order)]\n",
    "billing/tests.py": """
from billing.models import Invoice
from billing.tasks import send_invoice
from django.test import TransactionTestCase
from onceonly.integrations.django import captured
from shop import celery_app
from shop.endpoints import shop

class TaskTest(TransactionTestCase):
    def test_a_view_stores_its_task(self):
        with captured(shop) as found:
            self.assertEqual(self.client.post("/plain").status_code, 201)
        self.assertEqual([each.options["type"] for each in found.messages], ["billing.tasks.send_invoice"])

    def test_a_task_runs_once(self):
        with captured(shop) as found:
            values = [send_invoice.apply((1,), task_id="t").get() for _ in range(2)]
        self.assertEqual(values, [Invoice.objects.get().pk] * 2)
        kinds = [each.options["type"] for each in found.messages]
        self.assertEqual(kinds, ["InvoiceSent", "billing.tasks.print_invoice"])

    def test_eager_tasks_run_after_the_commit(self):
        celery_app.conf.task_always_eager = True
        try:
            self.client.post("/plain")
        finally:
            celery_app.conf.task_always_eager = False
        self.assertTrue(Invoice.objects.get().is_printed)
""",
    "shop/more_tests.py": """
from django.test import TestCase
from onceonly.integrations.django import captured
from shop.endpoints import shop
from shop.importing import import_order
from shop.models import Order
from shop.tasks import place_and_rename, rename
from shop.tenants import shops

class MoreTest(TestCase):
    databases = "__all__"

    def test_all_views(self):
        for place in ("/a", "/b", "/api/orders"):
            for _ in range(2):
                headers = {"Idempotency-Key": "k" + place}
                answer = self.client.post(place, {"name": "a"}, content_type="application/json", headers=headers)
                self.assertIn(answer.status_code, (200, 201), answer.content)
        self.assertEqual(Order.objects.count(), 3)

    def test_tasks(self):
        with captured(shop) as published:
            id_ = place_and_rename("b")
        run = published.bodies[0]
        self.assertEqual((run.result, run.task, run.kwargs), (id_, "shop.tasks.rename", {"name": "b"}))
        self.assertEqual(rename.get_result(id_).status, "READY")
        self.assertEqual(rename.call(run.args[0], "b"), Order.objects.get().name)

    def test_importing(self):
        self.assertEqual(import_order("1", "a"), import_order("1", "a"))
        self.assertEqual(Order.objects.count(), 1)

    def test_tenants(self):
        with captured(shops["acme"]) as acme, captured(shops["globex"]) as globex:
            for tenant, status in (("acme", 201), ("globex", 201), ("acme", 201), ("default", 404)):
                headers = {"X-Tenant": tenant, "Idempotency-Key": "k"}
                answer = self.client.post("/tenants", {"name": tenant}, content_type="application/json", headers=headers)
                self.assertEqual(answer.status_code, status)
        for tenant, published in (("acme", acme), ("globex", globex)):
            order = Order.objects.using(tenant).get()
            self.assertEqual((order.name, published.bodies), (tenant, [{"order": order.pk}]))
        self.assertEqual(Order.objects.count(), 0)
""",
}


@pytest.mark.slow
def test_the_project_of_the_guide_works(tmp_path: Path) -> None:
    """It is checked, migrated, and passes the tests on the page, and some of all other snippets."""
    more = snippet(PAGE, "# site_settings.py, with tasks")
    texts = {name: snippet(PAGE, f"# {name}") for name in ("site_settings.py", "billing/tasks.py", *FILES)} | OWN
    texts["site_settings.py"] += more
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    for command in (
        *(("migrate", "--run-syncdb", "--database", alias) for alias in ("default", "acme", "globex")),
        ("check", "--database", "default"),
        ("test", "shop", "billing", "--pattern", "*tests.py"),
    ):
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 10 tests" in done.stderr


def test_the_guide_names_all_checks_and_settings() -> None:
    """And no others."""
    package = ROOT / "src" / "onceonly" / "integrations" / "django"
    page, checks = PAGE.read_text(), (package / "checks.py").read_text() + (package / "tasks.py").read_text()
    for kind, numbers in (("E", (*range(1, 7), *range(10, 14))), ("W", range(7, 10))):
        for number in numbers:
            assert f"`onceonly.{kind}{number:03}`" in page
            assert f'id="onceonly.{kind}{number:03}"' in checks
    assert checks.count('id="onceonly.') == page.count("| `onceonly.") == 13
    for name in ("ENDPOINTS", "DATABASE", "TRANSPORT", "SENDING_THREAD"):
        assert f"| `{name}` |" in page
        assert f'"{name}":' in (package / "configuration.py").read_text()
