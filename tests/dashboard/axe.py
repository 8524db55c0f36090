"""axe-core: rules of accessibility, run in a page. It is a file of npm that only tests use; a loud skip where it is missing."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from tests import ROOT
from tests.servers.available import Server, gone

AXE = Server("axe-core", "ONCEONLY_AXE", str(ROOT / ".venv/emulators-node/node_modules/axe-core/axe.min.js"))
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


async def violations(page: Page) -> list[str]:
    """Return what breaks WCAG 2.2 AA or a best practice, with the elements."""
    await page.evaluate(f"{_source()};undefined")
    found: dict[str, Any] = await page.evaluate("tags => axe.run({runOnly: {type: 'tag', values: tags}})", RULES)
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in found["violations"]
    ]


@cache
def _source() -> str:
    path = Path(os.environ.get(AXE.variable, AXE.default))
    if not path.exists():
        raise gone(AXE, f"axe-core is not installed: `make test` installs it with the emulators, or set {AXE.variable}")
    return path.read_text(encoding="utf-8")
