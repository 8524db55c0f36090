"""The pages about PostgreSQL and RabbitMQ: with the rights that they list, and no others, an endpoint runs."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from tests import ROOT
from tests.docs.test_documentation import run_shell
from tests.servers.available import POSTGRESQL, RABBITMQ, need, postgresql_database

REFERENCE = ROOT / "docs" / "reference"
PROGRAM = """
import os
from dataclasses import dataclass

from onceonly import Context, Endpoint

shop = Endpoint("shop", store=os.environ["STORE"], transport=os.environ["TRANSPORT"])


@dataclass
class Place:
    order_id: str


@dataclass
class Placed:
    order_id: str


@shop.handler
async def place(order: Place, context: Context) -> None:
    context.publish(Placed(order.order_id))
    context.send(Placed(order.order_id), to="shop", delay=0.5)


@shop.handler
async def placed(event: Placed) -> None: ...
"""
COMMANDS = """
onceonly topology create shop:shop
echo '{"order_id": "A-1"}' > orders.jsonl
onceonly send orders.jsonl --to shop:shop --type Place --id-from order_id
until onceonly run shop:shop --drain; do sleep 0.5; done
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (REFERENCE / page).read_text(encoding="utf-8"), re.DOTALL)


async def execute(url: str, *statements: str) -> None:
    """Execute statements as the administrator."""
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        for each in statements:
            await connection.execute(text(each))
    await engine.dispose()


@pytest.fixture(name="database")
def a_database_and_the_roles_of_the_page() -> Iterator[tuple[str, str]]:
    """Return a database, and a part of names: roles belong to the whole server. Drop all of them."""
    name = f"shop_{uuid4().hex[:8]}"
    server = need(POSTGRESQL)
    with postgresql_database() as url:
        yield url, name
        for role in (name, f"{name}_owner"):
            asyncio.run(execute(url, f"DROP OWNED BY {role} CASCADE"))
    for role in (name, f"{name}_owner"):
        asyncio.run(execute(server, f"DROP ROLE {role}"))


@pytest.mark.slow
def test_a_role_with_the_rights_of_the_page_runs_an_endpoint(tmp_path: Path, database: tuple[str, str]) -> None:
    """Tables of its owner, messages in both directions, and all tasks of the janitor. The queries for operators run."""
    url, name = database
    roles, grants, *queries = ([*filter(None, map(str.strip, block.split(";")))] for block in blocks("postgresql.md", "sql"))
    (tmp_path / "shop.py").write_text(PROGRAM)
    owner, user = (
        f"{urlsplit(url)._replace(netloc=f'{role}@{urlsplit(url).hostname}', query='schema=messaging').geturl()}"
        for role in (f"{name}_owner", name)
    )
    own = [re.sub(r"\bshop(?=_owner\b|\b)", name, each) for each in (*roles, *grants)]
    asyncio.run(execute(url, *own[: len(roles)]))
    exported = "export STORE='{0}' TRANSPORT='{0}'\n"
    run_shell(tmp_path, f"{exported.format(owner)}onceonly schema create shop:shop")
    asyncio.run(execute(url, *own[len(roles) :]))
    done = run_shell(tmp_path, f"{exported.format(user)}{COMMANDS}onceonly janitor shop:shop")
    assert "drained: " in done.stderr
    asyncio.run(execute(url, *(each for query in queries for each in query)))


@pytest.fixture(name="virtual_host")
def a_virtual_host_and_the_user_of_the_page() -> Iterator[str]:
    """Run the page's commands with other names; skips where this machine cannot administrate the server."""
    host = urlsplit(need(RABBITMQ)).hostname
    program = shutil.which("rabbitmqctl")
    if program is None or subprocess.run([program, "-q", "status"], check=False, capture_output=True).returncode:
        pytest.skip("rabbitmqctl cannot administrate RabbitMQ here")
    name = f"shop-{uuid4().hex[:8]}"
    (block,) = blocks("rabbitmq.md", "sh")
    for line in block.replace("'a password'", "secret").splitlines():
        own = re.sub(r"(add_vhost|add_user|-p) shop", rf"\1 {name}", line).replace(f"-p {name} shop", f"-p {name} {name}")
        subprocess.run(["/bin/sh", "-c", own], check=True, capture_output=True)
    yield f"amqp://{name}:secret@{host}/{name}"
    for kind in ("vhost", "user"):
        subprocess.run(["rabbitmqctl", "-q", f"delete_{kind}", name], check=True)


@pytest.mark.slow
def test_a_user_with_the_permissions_of_the_page_runs_an_endpoint(tmp_path: Path, virtual_host: str) -> None:
    """It declares, sends, delays, receives and counts."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    exported = f"export STORE=sqlite:///shop.db TRANSPORT='{virtual_host}'\n"
    done = run_shell(tmp_path, f"{exported}{COMMANDS}onceonly status shop:shop\n{sys.executable} -c ''")
    assert "cannot" not in done.stderr
