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
        "apps",
        "tests",
        "handler_tests",
    )
)
OWN = {
    "manage.py": "import os, sys\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'project')\n"
    "from django.core.management import execute_from_command_line\nexecute_from_command_line(sys.argv)\n",
    "project.py": "from site_settings import *\nSECRET_KEY = 'x'\nROOT_URLCONF = 'shop.urls'\nUSE_TZ = True\n"
    "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'\nREST_FRAMEWORK = {'UNAUTHENTICATED_USER': None}\n"
    "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'db.sqlite3',\n"
    "    'TEST': {'NAME': 'test.sqlite3'}}}\n",
    "shop/__init__.py": "",
    "shop/models.py": "from django.db import models\nclass Order(models.Model):\n    name = models.CharField(max_length=80)\n",
    "shop/urls.py": "from django.urls import path\nfrom shop.more_views import PlaceOrder, PlaceOrderByREST, api\n"
    "from shop.views import place_order\nurlpatterns = [path('orders', place_order), path('a', PlaceOrder.as_view()), "
    "path('b', PlaceOrderByREST.as_view()), path('api/', api.urls)]\n",
    "shop/more_tests.py": """
from django.test import TestCase
from onceonly.integrations.django import captured
from shop.endpoints import shop
from shop.importing import import_order
from shop.models import Order
from shop.tasks import place_and_rename, rename

class MoreTest(TestCase):
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
""",
}


@pytest.mark.slow
def test_the_project_of_the_guide_works(tmp_path: Path) -> None:
    """It is checked, migrated, and passes the tests on the page, and some of all other snippets."""
    more = snippet(PAGE, "# site_settings.py, with tasks")
    texts = {name: snippet(PAGE, f"# {name}") for name in ("site_settings.py", *FILES)} | OWN
    texts["site_settings.py"] += more
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (
        ("migrate", "--run-syncdb"),
        ("check", "--database", "default"),
        ("test", "shop", "--pattern", "*tests.py"),
    ):
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 6 tests" in done.stderr


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
