"""The shop in Django under kills: with onceonly nothing is lost or doubled, and plain Django loses and doubles."""

import os
import subprocess
import sys
from difflib import ndiff

import pytest

from examples.hosts.django_shop.__main__ import VICTIMS, host_of, host_with_invoices
from examples.hosts.harness import APPLICATION, BESIDE, ROOT, WORKERS, Counts, Places, run
from tests.hosts.test_hosts import note
from tests.servers.available import POSTGRESQL, RABBITMQ, need

FOLDER = ROOT / "examples" / "hosts" / "django_shop"
MOST_LINES = 12


async def ran(*, is_control: bool, by_relay: bool = False, kills: int = 4) -> Counts:
    """Run the shop with few kills, and note the numbers."""
    places = Places(need(POSTGRESQL), need(RABBITMQ))
    host = host_of(places, by_relay=by_relay)
    counts = await run(host, places, is_control=is_control, ids=48, kills=kills)
    note(host.name, counts)
    return counts


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than the harness waits
@pytest.mark.parametrize(
    "by_relay", [pytest.param(False, id="sent-by-workers"), pytest.param(True, id="sent-by-relay", marks=pytest.mark.repeated)]
)
async def test_nothing_is_lost_or_doubled_when_gunicorn_and_the_relay_are_killed(*, by_relay: bool) -> None:
    """A fifth of the requests came twice. The workers, the relay and the master were killed."""
    counts = await ran(is_control=False, by_relay=by_relay)
    assert set(VICTIMS[: counts.kills]) == {WORKERS, BESIDE, APPLICATION}
    assert counts.rows == counts.ids, counts
    assert counts.unannounced == 0, counts
    assert counts.is_exact, counts


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than the harness waits
async def test_plain_django_loses_events_or_doubles_orders() -> None:
    """So the run above can fail: a client that repeats its request orders twice."""
    counts = await ran(is_control=True)
    assert counts.rows_doubled, counts
    assert not counts.is_exact


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than the harness waits
async def test_each_order_has_one_invoice_when_the_worker_of_celery_is_killed() -> None:
    """As well as gunicorn. A fifth of the requests came twice."""
    places = Places(need(POSTGRESQL), need(RABBITMQ))
    host = host_with_invoices(places, is_control=False)
    counts = await run(host, places, is_control=False, ids=48, kills=5)
    note(host.name, counts)
    assert counts.rows == counts.ids, counts
    assert counts.is_exact, counts


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than the harness waits
async def test_plain_celery_loses_or_doubles_invoices() -> None:
    """So the run above can fail: a repeated request is a second order, and a task is lost between commit and `on_commit`."""
    places = Places(need(POSTGRESQL), need(RABBITMQ))
    host = host_with_invoices(places, is_control=True)
    counts = await run(host, places, is_control=True, ids=48, kills=5)
    note(host.name, counts)
    assert counts.rows_doubled, counts
    assert not counts.is_exact


def test_the_tasks_of_celery_change_in_a_few_lines() -> None:
    """Four: the import of the endpoint and of the class, the argument of the application, and its settings."""
    before, after = (lines_of(f"invoices/{name}.py") for name in ("control", "once"))
    changed = [line for line in ndiff(before, after) if line.startswith("+")]
    assert len(changed) == 4, "\n".join(changed)


def test_the_shop_changes_in_a_few_lines() -> None:
    """Lines that are new or changed count, in its views and in its settings; removed ones do not."""
    before, after = (lines_of(name) for name in ("control.py", "exactly_once.py"))
    changed = [line for line in ndiff(before, after) if line.startswith("+")]
    assert 0 < len(changed) <= MOST_LINES, "\n".join(changed)


def lines_of(name: str) -> list[str]:
    """Return the lines of a file without its docstring, indentation and empty lines."""
    return [line.strip() for line in (FOLDER / name).read_text().splitlines()[1:] if line.strip()]


@pytest.mark.slow
def test_the_shop_passes_its_own_tests() -> None:
    """With Django's test runner, in a process of its own: its admin site shows orders, and a repeated request places one."""
    shop = [sys.executable, "-m", "examples.hosts.django_shop.manage"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOSTS_", "DJANGO_"))}
    for command in (["makemigrations", "--check", "shop"], ["test", "examples.hosts.django_shop", "--verbosity=0"]):
        done = subprocess.run([*shop, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
