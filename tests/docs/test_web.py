"""The pages about web applications run: what they show serves a repeated request once, with each framework."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.test_documentation import README, snippet

CLIENT = """
import asyncio, sys
from importlib import import_module

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine


async def main():
    app = import_module(sys.argv[1]).app
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            order = {"order_id": "A-4", "total": 9}
            for _ in range(2):
                answer = await client.post("/orders", json=order, headers={"Idempotency-Key": '"k-1"'})
                print(answer.status_code, answer.json(), answer.headers.get("idempotent-replayed", "first"))
    engine = create_async_engine("sqlite+aiosqlite:///shop.db")
    async with engine.connect() as connection:
        print(await connection.scalar(text("SELECT count(*) FROM orders")), "row")
    await engine.dispose()


asyncio.run(main())
"""


SYNC_CLIENT = """
import asyncio, sys
from importlib import import_module

from sqlalchemy import create_engine, text
from werkzeug.test import Client

from shop import shop


async def create():
    async with shop.running():
        pass


asyncio.run(create())
client = Client(import_module(sys.argv[1]).app)
order = {"order_id": "A-4", "total": 9}
for _ in range(2):
    answer = client.post("/orders", json=order, headers={"Idempotency-Key": '"k-1"'})
    print(answer.status_code, answer.get_json(), answer.headers.get("idempotent-replayed", "first"))
with create_engine("sqlite:///shop.db").connect() as connection:
    print(connection.scalar(text("SELECT count(*) FROM orders")), "row")
"""
PROGRAMS = (("web.md", "web"), ("web.md", "plain"), ("flask.md", "views"), ("flask.md", "wsgi_views"))


@pytest.mark.parametrize(("page", "module"), PROGRAMS, ids=str)
def test_the_programs_serve_a_repeated_request_once(tmp_path: Path, page: str, module: str) -> None:
    """One row, two equal answers, the second of which says that it was kept."""
    (tmp_path / "shop.py").write_text(snippet(README, "# shop.py"))
    (tmp_path / f"{module}.py").write_text(snippet(ROOT / "docs" / "how-to" / page, f"# {module}.py"))
    (tmp_path / "client.py").write_text(CLIENT if page == "web.md" else SYNC_CLIENT)
    done = subprocess.run(
        [sys.executable, "client.py", module], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    order = "{'order_id': 'A-4', 'total': 9}"
    assert done.stdout.splitlines() == [f"201 {order} first", f"201 {order} true", "1 row"]
