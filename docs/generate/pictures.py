"""Takes the pictures of the dashboard in `docs/images/`. `make pictures` runs it. It needs Chromium.

It serves a dashboard of three endpoints. Two of them run here on SQLite files for about a minute, until their processes have
reported a rate and their janitor has run.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from playwright.async_api import Browser  # noqa: E402 - after the path of the tests

from onceonly import Endpoint  # noqa: E402 - the same
from onceonly.assembly import open_transport  # noqa: E402 - the same
from onceonly.model.message import Message, Send  # noqa: E402 - the same
from onceonly.runtime.environment import LIVE  # noqa: E402 - the same
from onceonly_dashboard import dashboard, loopback_only  # noqa: E402 - the same
from onceonly_dashboard.app import Dashboard  # noqa: E402 - the same
from tests.dashboard.serving import endpoint, letter, served, store  # noqa: E402 - the same
from tests.integrations.browser import opened_browser  # noqa: E402 - the same

PICTURES = (
    ("dashboard-overview.png", "/", 1000, 560, "light"),
    ("dashboard-phone.png", "/", 360, 640, "light"),
    ("dashboard-letter.png", f"/dead/{letter().key}", 1000, 740, "dark"),
)
SECONDS_BETWEEN_MESSAGES = 0.05


@asynccontextmanager
async def working(shop: Endpoint, url: str) -> AsyncIterator[None]:
    """Run an endpoint, and send it messages."""

    async def send() -> None:
        async with open_transport(url, shop.name) as transport:
            for number in count():
                name = f"B-{number}"
                message = Message(id=name, source="web", type="PlaceOrder", body=b'{"order_id": "%s"}' % name.encode())
                await transport.send([Send(message=message, to=shop.name)])
                await asyncio.sleep(SECONDS_BETWEEN_MESSAGES)

    async with shop.running():
        sending = asyncio.create_task(send())
        try:
            yield
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending


async def is_known(app: Dashboard, name: str) -> None:
    """Wait until the processes of an endpoint have reported twice, and its janitor has run."""
    probe = app.services.endpoints[name].store
    while probe.value is None or not probe.value.rate or probe.value.journal is None:
        await probe.wait_for(probe.rounds + 1)


async def take(browser: Browser, url: str, picture: tuple[str, str, int, int, Any]) -> None:
    """Take one picture."""
    name, path, width, height, theme = picture
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = await context.new_page()
    await page.goto(url + path, wait_until="networkidle")
    await page.screenshot(path=ROOT / "docs" / "images" / name)
    await context.close()
    print(f"docs/images/{name}")


async def main() -> None:
    """Take all pictures."""
    now = LIVE.clock.now()
    with tempfile.TemporaryDirectory() as folder:
        urls = {name: f"sqlite:///{folder}/{name}.db" for name in ("shop", "mail")}
        shop, mail = (endpoint(name, store=url, transport=url) for name, url in urls.items())
        billing = endpoint("billing")  # in memory, and never run
        async with AsyncExitStack() as stack:
            for each in (shop, mail):
                await stack.enter_async_context(working(each, urls[each.name]))
            await store(shop, [letter(number=number, at=now - number * 60_000) for number in range(1, 4)])
            app: Any = dashboard(shop, billing, mail, auth=loopback_only())
            app.name_targets(["shop:shop", "billing:billing", "mail:mail"])
            url = await stack.enter_async_context(served(app))
            for each in (shop, mail):
                await is_known(app, each.name)
            browser = await stack.enter_async_context(opened_browser())
            for picture in PICTURES:
                await take(browser, url, picture)


if __name__ == "__main__":
    asyncio.run(main())
