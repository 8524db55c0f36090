"""The shop's page in a real browser: orders go through, come once, and outlive the program that took them."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.integrations.browser import Shop, opened_browser, started_shop

pytestmark = pytest.mark.timeout(900)  # the browser may have to be installed first

TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """Start the program in an empty folder."""
    async with started_shop(tmp_path) as shop:
        yield shop


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """Open a page; what goes wrong in it fails the test."""
    async with opened_browser() as browser:
        page = await browser.new_page(viewport={"width": 760, "height": 640}, color_scheme="light")
        page.set_default_timeout(30_000)
        expect.set_options(timeout=30_000)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        yield page
        assert wrong == []


async def order(page: Page, item: str, quantity: int) -> None:
    """Place an order as a person would, by the names of things."""
    await page.get_by_label("Item").select_option(item)
    await page.get_by_label("Quantity").fill(str(quantity))
    await page.get_by_role("button", name="Place order").click()


@pytest.mark.slow
async def test_an_order_is_placed_and_seen_to_be_shipped(page: Page, shop: Shop) -> None:
    """The page is empty first; then each step shows."""
    await page.goto(shop.url)
    await expect(page.get_by_text("Nothing is ordered yet.")).to_be_visible()
    await order(page, "Coffee", 3)
    await expect(page.get_by_role("status")).to_have_text("Order 1 is placed.")
    await expect(page.locator("#orders > li")).to_have_count(1)
    await expect(page.locator("#orders .what")).to_have_text(f"3 {TIMES} coffee")
    await expect(page.locator("[aria-current=step]")).to_have_text("shipped")
    await expect(page.get_by_text("Nothing is ordered yet.")).to_be_hidden()


@pytest.mark.slow
async def test_an_impatient_customer_orders_once(page: Page, shop: Shop) -> None:
    """Five requests, one key, one order; a second order is another one."""
    await page.goto(shop.url)
    await page.get_by_label("Be impatient").check()
    async with page.expect_response("**/orders"):
        await order(page, "Tea", 2)
    await expect(page.get_by_role("status")).to_have_text("Order 1 is placed, asked 5 times.")
    await order(page, "Cocoa", 1)
    await expect(page.get_by_role("status")).to_have_text("Order 2 is placed, asked 5 times.")
    await expect(page.locator("#orders .what")).to_have_text([f"1 {TIMES} cocoa", f"2 {TIMES} tea"])
    await expect(page.locator("[aria-current=step]")).to_have_text(["shipped", "shipped"])
    if picture := os.environ.get("ONCEONLY_PICTURE"):  # how the one in the documentation was made
        await page.get_by_label("Be impatient").uncheck()
        await order(page, "Coffee", 3)
        await expect(page.locator("#orders .what")).to_have_count(3)
        await page.screenshot(path=picture)


@pytest.mark.slow
async def test_an_order_outlives_the_program(page: Page, shop: Shop) -> None:
    """Placed while it is away: the page asks again, with the same key, until it is back."""
    await page.goto(shop.url)
    shop.kill()
    await order(page, "Tea", 1)
    await expect(page.get_by_role("status")).to_contain_text("asking again with the same key")
    await shop.start()
    await expect(page.get_by_role("status")).to_have_text("Order 1 is placed.")
    await expect(page.locator("[aria-current=step]")).to_have_text("shipped")


@pytest.mark.slow
async def test_the_page_can_be_used_by_keyboard_alone(page: Page, shop: Shop) -> None:
    """From field to field, and Enter."""
    await page.goto(shop.url)
    await page.keyboard.press("Tab")
    await expect(page.get_by_label("Item")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_label("Quantity")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("Order 1 is placed.")


@pytest.mark.slow
async def test_the_page_asks_nobody_else_for_anything(page: Page, shop: Shop) -> None:
    """No other host: no CDN, no fonts, no counting."""
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    await page.goto(shop.url, wait_until="networkidle")
    assert {url for url in asked if not url.startswith((shop.url, "data:"))} == set()
