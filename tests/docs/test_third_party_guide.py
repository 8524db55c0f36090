"""The page about services that are not ours: its program runs, and does what the page says."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from onceonly import Response, testing
from tests.endpoint.http_services import ROOT

PAGE = (ROOT / "docs" / "how-to" / "third-party-calls.md").read_text(encoding="utf-8")


def shop(folder: Path) -> Any:
    """Run the page's program in a folder."""
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if each.startswith("# shop.py")]
    made = ModuleType("shop")
    exec(compile(block.replace("sqlite:///", f"sqlite:///{folder}/"), "shop.py", "exec"), vars(made))  # noqa: S102 - the page's own program
    return made


@pytest.mark.parametrize(("status", "complaints"), [(200, 0), (402, 1)])
async def test_the_pages_program_pays_an_order_once(tmp_path: Path, status: int, complaints: int) -> None:
    """Also if the process dies after the request; a 402 reaches the handler."""
    page = shop(tmp_path)
    async with testing.run(page.shop) as t:
        t.answer(f"{page.PAY}/charges", Response(status=status, body=b"words"))
        await t.deliver(page.Order("A-1", 5), copies=2, crash_at="after-commit")
        (posted,) = t.posted
        assert posted.body == b"amount=5&currency=eur"
        assert [each.type for each in t.sent].count("NotPaid") == complaints
