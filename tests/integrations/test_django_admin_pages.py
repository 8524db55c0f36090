"""Django's admin in a browser: a person logs in, opens a dead letter and retries it, and no page breaks its layout."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.hostile import LETTERS
from tests.dashboard.serving import letter
from tests.integrations.browser import opened_browser
from tests.integrations.django_admin import alias_of, count_sent, installed_admin, store_letters, store_result, user_with

from django.contrib.staticfiles.handlers import StaticFilesHandler  # isort: skip - Django is set up before
from django.core.management import call_command  # isort: skip - the same
from django.db import transaction  # isort: skip - the same
from django.test.testcases import LiveServerThread  # isort: skip - the same
from django.test.utils import override_settings  # isort: skip - the same

from onceonly.integrations.django import Endpoint  # isort: skip - the same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the browser may have to be installed first
ALIAS = "pages"
WIDTHS = (1280, 390)
PERMISSIONS = (
    *("view_deadletter", "retry_deadletter", "delete_deadletter", "view_pendingrecord", "view_endpointstatus"),
    "view_taskresult",
)
HOSTILE = "<x-hostile>" + "w" * 300
HOSTILE_RESULT = {
    "task": f"shop.tasks.{HOSTILE}",
    "args": [HOSTILE],
    "kwargs": {HOSTILE: {"a": [1, 2]}},
    "errors": [{"exception_class_path": HOSTILE, "traceback": f"Traceback\n{HOSTILE}"}],
    "worker_ids": [HOSTILE[:64]],
}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Endpoint]:
    """Make an endpoint with dead letters and pending records."""
    with ExitStack() as stack:
        stack.enter_context(alias_of(ALIAS, f"sqlite:///{tmp_path}/shop.db"))
        call_command("migrate", "onceonly", database=ALIAS, verbosity=0)
        stack.enter_context(installed_admin(tmp_path))
        stack.enter_context(override_settings(ONCEONLY={"SENDING_THREAD": False, "DATABASE": ALIAS}))
        found = Endpoint("shop", transport=f"sqlite:///{tmp_path}/queue.db")
        store_letters(found, [*(each for _, each in LETTERS), letter(), letter(number=2)])
        with transaction.atomic(using=ALIAS):
            found.publish({"order": "a"}, type="Placed")
        store_result(ALIAS)
        store_result(ALIAS, "FAILED", **HOSTILE_RESULT)
        user_with(*PERMISSIONS)
        yield found


@pytest.fixture
def url(shop: Endpoint) -> Iterator[str]:
    """Serve the project, with its style sheets."""
    assert shop.database == ALIAS
    thread = LiveServerThread("127.0.0.1", StaticFilesHandler)
    thread.daemon = True
    thread.start()
    thread.is_ready.wait()
    assert thread.error is None
    try:
        yield f"http://127.0.0.1:{thread.port}"
    finally:
        thread.terminate()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_letter_is_opened_and_retried(shop: Endpoint, url: str, tmp_path: Path, width: int) -> None:
    """By clicks alone. No page is wider than its window, has an element of a message, or an error in the console."""
    folder = Path(os.environ.get("ONCEONLY_PICTURES", tmp_path))
    problems = asyncio.run(visit(url, folder, width))
    assert not problems, "\n".join(problems)
    assert count_sent(shop) == 1


async def visit(url: str, folder: Path, width: int) -> list[str]:
    """Go through the pages, and return what the browser complains about."""
    problems: list[str] = []
    async with opened_browser() as browser:
        expect.set_options(timeout=30_000)
        page = await browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(30_000)
        page.on("console", lambda told: problems.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("response", lambda answer: problems.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)

        async def looked_at(name: str) -> None:
            await page.wait_for_load_state("networkidle")
            await page.screenshot(path=folder / f"{name}-{width}.png", full_page=name not in {"letters", "retried"})
            problems.extend(await layout_problems(page, name))

        await page.goto(f"{url}/admin/")
        await page.fill("#id_username", "ana")
        await page.fill("#id_password", "ana")
        await page.click("input[type=submit]")
        await looked_at("index")
        await page.goto(f"{url}/admin/onceonly/endpointstatus/")
        await looked_at("endpoints")
        await page.goto(f"{url}/admin/onceonly/pendingrecord/")
        await looked_at("records")
        await page.click("#result_list tbody a >> nth=0")
        await looked_at("record")
        await page.goto(f"{url}/admin/onceonly/taskresult/")
        await looked_at("results")
        await page.click("#result_list tbody a >> nth=0")
        await looked_at("result")
        await page.goto(f"{url}/admin/onceonly/deadletter/")
        await looked_at("letters")
        await page.click(f"text={letter().key[:12]}")
        await looked_at("letter")
        await page.click("text=Retry >> nth=0")
        await looked_at("confirmation")
        await page.click("input[type=submit][value=Retry]")
        await expect(page.locator(".messagelist .success")).to_contain_text("1 dead letter of shop retried")
        await looked_at("retried")
        for number, (_, hostile) in enumerate(LETTERS[-3:]):
            await page.goto(f"{url}/admin/onceonly/deadletter/?q={hostile.key}")
            await page.click("#result_list tbody a >> nth=0")
            await looked_at(f"hostile-{number}")
    return problems


async def layout_problems(page: Page, name: str) -> list[str]:
    """Return what is wrong with a page: wider than its window, texts outside of their column, elements of messages."""
    wide, room = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    found = [f"{name} is {wide} px wide in a window of {room} px"] if wide > room else []
    outside = await page.evaluate(
        """[...document.querySelectorAll(".onceonly-text, .onceonly-pairs, .onceonly-letters, .readonly")]
            .filter(each => each.getBoundingClientRect().right > innerWidth + 1).map(each => each.className)"""
    )
    found += [f"{name}: {each} reaches beyond the window" for each in outside]
    styled = await page.evaluate("""[...document.querySelectorAll(".onceonly-text")]
        .filter(each => getComputedStyle(each).whiteSpace !== "pre-wrap").length""")
    found += [f"{name}: the style sheet of the app is not applied"] if styled else []
    hostile = await page.evaluate("document.querySelectorAll('x-hostile').length")
    return found + ([f"{name} has an element of a message"] if hostile else [])
