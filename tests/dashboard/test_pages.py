"""The pages in headless Chromium: light and dark, wide and narrow, accessible, with the keyboard alone, without script."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, BrowserContext, Page, expect

from onceonly import Endpoint, History, Journal
from onceonly.model.conversation import (
    DEAD_LETTER,
    DUPLICATE,
    REDISPATCHED,
    REFUSED_OLD,
    RELAYED,
    RETRIED,
    JournalEntry,
    conversation_key,
)
from onceonly.model.health import ProcessReport
from onceonly.model.identity import Identity
from onceonly.model.message import Message, Send
from onceonly.model.minutes import MINUTE_MS, QUARTER_MS, Span, WorkHistory
from onceonly.model.record import Record
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import open_database
from onceonly.sql.store import SqlPresence
from onceonly_dashboard import dashboard, loopback_only
from tests.dashboard.axe import violations
from tests.dashboard.hostile import LARGE, MARK, PAYLOADS, hostile
from tests.dashboard.serving import NOW, endpoint, letter, sampled, served, store, tell
from tests.integrations.browser import opened_browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the browser may have to be installed first

WIDTHS = (1280, 360)
PAGES = [
    "/",
    "/e/shop",
    "/settings",
    "/e/nobody",
    "/dead",
    "/dead/g/all?endpoint=shop",
    "/dead/KEY",
    "/find?source=web&id=A-1",
    "/pending",
    "/claims",
    "/actions",
    "/act/retry?endpoint=shop&group=all",
    "/act/edit?endpoint=shop&key=KEY",
]
ON_VIOLATION = """
window.__reports = [];
addEventListener("securitypolicyviolation", (event) => window.__reports.push(event.violatedDirective + " " + event.blockedURI));
"""


class Watched:
    """A page, with what went wrong in it and what it asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.wrong: list[str] = []
        self.asked: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", lambda message: self.wrong.append(message.text) if message.type in {"error", "warning"} else None)
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.asked.append(request.url))

    async def check(self, url: str) -> None:
        """Fail for errors, reports, foreign requests, and a page that scrolls sideways."""
        wrong = [each for each in self.wrong if "404 (Not Found)" not in each]
        assert wrong == []
        assert await self.page.evaluate("window.__reports") == []
        assert [each for each in self.asked if not each.startswith(url)] == []
        wide, room = await self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= room, f"the page is {wide} px wide in a window of {room} px"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where screenshots go: ONCEONLY_PICTURES keeps them."""
    kept = os.environ.get("ONCEONLY_PICTURES")
    return Path(kept) if kept else tmp_path_factory.mktemp("pictures")


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Open Chromium."""
    async with opened_browser() as browser:
        expect.set_options(timeout=30_000)
        yield browser


@asynccontextmanager
async def opened(browser: Browser, **options: Any) -> AsyncIterator[Watched]:
    """Open a page in a context of its own."""
    context: BrowserContext = await browser.new_context(**options)
    context.set_default_timeout(30_000)
    if options.get("java_script_enabled", True):
        await context.add_init_script(ON_VIOLATION)
    try:
        yield Watched(await context.new_page())
    finally:
        await context.close()


@asynccontextmanager
async def shown(*endpoints: Endpoint, **options: Any) -> AsyncIterator[tuple[Any, str]]:
    """Serve a dashboard of these endpoints that has read everything once; gives it and its URL."""
    app = dashboard(*endpoints, **{"auth": loopback_only(), **options})
    async with served(app) as url:
        await sampled(app)
        yield app, url


async def shop_with_letters(stack: AsyncExitStack) -> tuple[Endpoint, Endpoint, Endpoint]:
    """Return three endpoints: one with dead letters, one that is well, one whose settings are risky."""
    shop, billing = endpoint("shop"), endpoint("billing", deduplication=History(timedelta(days=30)))
    await stack.enter_async_context(shop.opened())
    await store(shop, [letter(number=number) for number in range(1, 4)])
    return shop, billing, endpoint("risky-endpoint-with-a-long-name", deduplication=History(timedelta(hours=8)), janitor=False)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.repeated
async def test_a_page_is_right_in_each_theme_and_width(browser: Browser, folder: Path, path: str) -> None:
    """No sideways scroll, console error, foreign request or report; axe-core finds nothing."""
    path = path.replace("KEY", letter().key)
    async with AsyncExitStack() as stack:
        _, url = await stack.enter_async_context(shown(*await shop_with_letters(stack)))
        for width in WIDTHS:
            for theme in ("light", "dark"):
                size = {"width": width, "height": 800}
                async with opened(browser, viewport=size, color_scheme=theme, has_touch=width < 800) as watched:
                    await watched.page.goto(url + path, wait_until="networkidle")
                    name = path.replace(letter().key, "letter").strip("/").replace("/", "-").partition("?")[0] or "overview"
                    await watched.page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
                    await watched.check(url)
                    assert await violations(watched.page) == []


@pytest.mark.parametrize("range_", ["hour", "day"])
@pytest.mark.repeated
async def test_charts_of_the_last_hour_and_day(browser: Browser, folder: Path, tmp_path: Path, range_: str) -> None:
    """Each has a title, a description and times. The numbers are in a table, too, and the other range is a link."""
    shop = await shop_that_worked(tmp_path)
    async with AsyncExitStack() as stack:
        _, url = await stack.enter_async_context(shown(shop))
        for width in WIDTHS:
            for theme in ("light", "dark"):
                size = {"width": width, "height": 800}
                async with opened(browser, viewport=size, color_scheme=theme, has_touch=width < 800) as watched:
                    page = watched.page
                    await page.goto(f"{url}/e/shop?range={range_}", wait_until="networkidle")
                    await page.screenshot(path=folder / f"work-{range_}-{theme}-{width}.png", full_page=True)
                    await expect(page.get_by_role("img", name="Handled per minute")).to_be_visible()
                    await expect(page.locator(".time-chart .times li").first).to_be_visible()
                    await page.get_by_text("Show these numbers as a table").click()
                    rows = page.get_by_role("region", name="Numbers of the charts").locator("tbody tr")
                    await expect(rows).to_have_count(60 if range_ == "hour" else 96)
                    await watched.check(url)
                    assert await violations(page) == []
                    await page.get_by_role("link", name="Last day" if range_ == "hour" else "Last hour").click()
                    title = "Last day" if range_ == "hour" else "Last hour"
                    await expect(page.get_by_role("heading", name=title)).to_be_visible()


async def shop_that_worked(folder: Path) -> Endpoint:
    """Return an endpoint of which two processes reported what they did for a day, with a gap."""
    url = f"sqlite:///{folder}/worked.db"
    shop, now = endpoint("shop", store=url, transport=url), LIVE.clock.now()
    async with shop.opened():
        """Make the tables."""
    busy = Span(handled=12_345, failed=3, duplicates=1, waiting=9, oldest=61_000, runs={6: 12_000, 12: 345})
    minutes = {now // MINUTE_MS - each: busy for each in range(60) if each != 20}
    work = WorkHistory(minutes=minutes, quarters={now // QUARTER_MS - each: busy for each in range(90)})
    database = await open_database(url, clock=LIVE.clock)
    for name in ("web-1:1:a", "web-2:1:b"):
        await SqlPresence(database, "shop").report(ProcessReport(process=name, host="web", pid=1, version="1", work=work))
    await database.close()
    return shop


def shop_with_a_journal(folder: Path) -> Endpoint:
    """Return an endpoint whose journal is on a file."""
    url = f"sqlite:///{folder}/journal.db"
    return endpoint("shop", store=url, transport=url, journal=Journal())


async def a_long_story(shop: Endpoint) -> str:
    """Write all kinds of events, some of them for a chain of messages, and a dead letter; gives the page's path."""
    dead = letter()
    assert dead.message is not None
    key = conversation_key(dead.message)
    within = (("conversationid", "A-1"),)
    chain = [
        Message(id=f"{number}-{'of-a-chain-' * 5}", source="shop", type="Order", body=b"", extensions=within)
        for number in range(14)
    ]
    handled = [Record(Identity("web", "A-1"), (Send(message=chain[0]),))]
    handled += [Record(one.identity, (Send(message=following),)) for one, following in pairwise(chain)]
    for record in handled:
        await tell(shop, handled=[record])
    ends: dict[str, dict[str, Any]] = {
        RETRIED: {"attempt": 1, "duration": 1500, "error": "shop.payments.errors.GatewayDidNotAnswerInTimeError"},
        DUPLICATE: {},
        REDISPATCHED: {},
        RELAYED: {},
        REFUSED_OLD: {"error": "too_old"},
        DEAD_LETTER: {"attempt": 8, "duration": 31_000_000, "error": "ValueError", "letter": dead.key},
    }
    await tell(shop, *(JournalEntry(message=dead.message, outcome=each, at=NOW, **values) for each, values in ends.items()))
    await store(shop, [dead])
    return f"/c/{key.hex()}"


@pytest.mark.parametrize("page", ["conversation", "find", "letter"])
@pytest.mark.repeated
async def test_a_story_is_right_in_each_theme_and_width(browser: Browser, folder: Path, tmp_path: Path, page: str) -> None:
    """The tree with all kinds of events, the same events of one message, and the links between the pages."""
    shop = shop_with_a_journal(tmp_path)
    path = await a_long_story(shop)
    paths = {"conversation": path, "find": "/find?source=web&id=A-1", "letter": f"/dead/{letter().key}"}
    async with shown(shop) as (_, url):
        for width in WIDTHS:
            for theme in ("light", "dark"):
                size = {"width": width, "height": 800}
                async with opened(browser, viewport=size, color_scheme=theme, has_touch=width < 800) as watched:
                    await watched.page.goto(url + paths[page], wait_until="networkidle")
                    await watched.page.screenshot(path=folder / f"story-{page}-{theme}-{width}.png", full_page=True)
                    await watched.check(url)
                    assert await violations(watched.page) == []


async def test_a_story_leads_from_page_to_page(browser: Browser, tmp_path: Path) -> None:
    """Conversation, dead letter, message, and back."""
    shop = shop_with_a_journal(tmp_path)
    path = await a_long_story(shop)
    async with shown(shop) as (_, url), opened(browser, java_script_enabled=False) as watched:
        page = watched.page
        await page.goto(url + path)
        await expect(page.get_by_text("dead letter, attempt 8, 31.0 s: ValueError")).to_be_visible()
        await page.get_by_role("link", name=f"Dead letter {letter().key[:12]}").click()
        await page.get_by_role("link", name="Conversation").click()
        await expect(page).to_have_url(url + path)
        await page.get_by_role("link", name="A-1", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Find a message")
        await page.get_by_role("link", name="Conversation").click()
        await expect(page).to_have_url(url + path)


async def test_a_hostile_story_does_nothing(browser: Browser, tmp_path: Path) -> None:
    """Ids, sources, types, conversations and classes of errors are text; so are the reasons of letters."""
    shop, letters = shop_with_a_journal(tmp_path), [hostile(text) for text in PAYLOADS]
    messages = [(each.message, each.key) for each in letters if each.message is not None]
    one = [replace(message, extensions=(("conversationid", "one"),)) for message, _ in messages]
    for of in ([message for message, _ in messages], one):
        await tell(
            shop,
            *(
                JournalEntry(message=message, outcome=DEAD_LETTER, at=NOW, attempt=1, error=message.type, letter=key)
                for message, (_, key) in zip(of, messages, strict=True)
            ),
        )
    await store(shop, letters)
    paths = [f"/c/{conversation_key(one[0]).hex()}", *(f"/c/{conversation_key(each).hex()}" for each, _ in messages)]
    paths += [f"/find?{urlencode({'source': each.source, 'id': each.id})}" for each, _ in messages[::8]]
    async with shown(shop) as (_, url), opened(browser, viewport={"width": 360, "height": 800}) as watched:
        for path in paths:
            await watched.page.goto(url + path)
            await expect(watched.page.locator("ul.events li").first).to_contain_text("dead letter, attempt 1: ")
            assert await watched.page.locator(MARK).count() == 0
            await watched.check(url)


async def test_the_theme_is_kept_and_works_without_script(browser: Browser) -> None:
    """A cookie: the server renders it, so nothing flashes."""
    plain = opened(browser, java_script_enabled=False, color_scheme="light")
    async with shown(endpoint("shop")) as (_, url), plain as watched:
        await watched.page.goto(f"{url}/e/shop")
        await watched.page.get_by_role("button", name="dark").click()
        await expect(watched.page).to_have_url(f"{url}/e/shop")
        await expect(watched.page.get_by_role("button", name="dark")).to_have_attribute("aria-pressed", "true")
        await watched.page.goto(f"{url}/settings")
        await expect(watched.page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_a_page_refreshes_and_keeps_focus(browser: Browser) -> None:
    """A change is shown without a reload and announced; a focused link stays focused; a pause stops it."""
    async with AsyncExitStack() as stack:
        shop = endpoint("shop")
        await stack.enter_async_context(shop.opened())
        app, url = await stack.enter_async_context(shown(shop))
        watched = await stack.enter_async_context(opened(browser))
        await watched.page.clock.install()
        await watched.page.goto(url)
        await expect(watched.page.locator("#live-note")).to_have_text("every 5 s")
        link = watched.page.locator("tbody").get_by_role("link", name="shop")
        await link.focus()
        await store(shop, [letter()])
        probe = app.services.endpoints["shop"].letters
        probe.value = 1  # what the next read finds
        await watched.page.clock.run_for(6000)
        await expect(watched.page.get_by_role("cell", name="1 message given up")).to_be_visible()
        await expect(link).to_be_focused()
        await expect(watched.page.get_by_role("status")).to_have_text("shop: ▲degraded")
        await watched.page.get_by_role("button", name="Pause").click()
        await expect(watched.page.locator("#live-note")).to_have_text("paused")
        asked = len(watched.asked)
        await watched.page.clock.run_for(20_000)
        assert len(watched.asked) == asked


async def test_a_page_says_when_the_dashboard_is_away_and_recovers(browser: Browser) -> None:
    """The last values stay on the page."""
    async with AsyncExitStack() as stack:
        shop = endpoint("shop")
        await stack.enter_async_context(shop.opened())
        _, url = await stack.enter_async_context(shown(shop))
        watched = await stack.enter_async_context(opened(browser))
        await watched.page.clock.install()
        await watched.page.goto(url)
        await watched.page.context.set_offline(True)
        await watched.page.clock.run_for(6000)
        await expect(watched.page.locator("#live-note")).to_contain_text("not updated since")
        await expect(watched.page.get_by_role("link", name="shop")).to_be_visible()
        await watched.page.context.set_offline(False)
        await watched.page.clock.run_for(6000)
        await expect(watched.page.locator("#live-note")).to_have_text("every 5 s")


async def test_the_pages_can_be_used_by_keyboard_alone(browser: Browser) -> None:
    """Skip link, pages, endpoint: Tab and Enter."""
    async with shown(endpoint("shop", deduplication=History())) as (_, url), opened(browser) as watched:
        await watched.page.goto(url)
        await watched.page.keyboard.press("Tab")
        await expect(watched.page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await watched.page.keyboard.press("Enter")
        await watched.page.keyboard.press("Tab")
        await expect(watched.page.get_by_role("link", name="shop", exact=True)).to_be_focused()
        await watched.page.keyboard.press("Enter")
        await expect(watched.page.get_by_role("heading", level=1)).to_have_text("shop")


async def test_hostile_messages_do_nothing(browser: Browser) -> None:
    """No dialog, no report, no foreign request, no element of theirs: on each page that shows them."""
    letters = [hostile(text) for text in PAYLOADS] + [found for _, found in LARGE]
    async with AsyncExitStack() as stack:
        shop = endpoint("shop")
        await stack.enter_async_context(shop.opened())
        await store(shop, letters)
        _, url = await stack.enter_async_context(shown(shop))
        watched = await stack.enter_async_context(opened(browser, viewport={"width": 360, "height": 800}))
        for path in ["/", "/e/shop", "/dead", "/dead/g/all?endpoint=shop", *(f"/dead/{found.key}" for found in letters)]:
            await watched.page.goto(url + path)
            assert await watched.page.locator(MARK).count() == 0
            await watched.check(url)


async def test_a_letter_is_fixed_by_edit_without_script_and_by_keyboard(browser: Browser) -> None:
    """Open the letter, edit, review, send, and see the result."""
    async with AsyncExitStack() as stack:
        shop = endpoint("shop")
        await stack.enter_async_context(shop.opened())
        await store(shop, [letter()])
        app, url = await stack.enter_async_context(shown(shop))
        watched = await stack.enter_async_context(opened(browser, java_script_enabled=False))
        page = watched.page
        await page.goto(f"{url}/dead/{letter().key}")
        await page.get_by_role("link", name="Edit and retry").focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Body").fill('{"order_id": "A-1", "total": 30}')
        await page.get_by_label("Reason").fill("the total was negative")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Changes")).to_be_visible()
        await page.get_by_role("button", name="Send").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Edit and retry")
        await expect(page.get_by_text("1 done, 0 kept, 0 left, of 1.")).to_be_visible()
        await app.services.action_worker.settled()
