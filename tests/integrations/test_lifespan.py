"""An application whose set-up is wrong: what its server prints, and how it ends."""

import asyncio
import logging
import os
import sys
import traceback
from asyncio.subprocess import PIPE, STDOUT
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from onceonly import Endpoint, SetupError
from onceonly.integrations.starlette import lifespan
from tests import ROOT

PROBLEM = (
    "onceonly.errors.SetupError: endpoint 'shop' cannot use its store AsyncEngine(sqlite+aiosqlite://): "
    "a SQLite database in memory has only one connection"
)


def wrong(name: str = "shop") -> Endpoint:
    """Make an endpoint whose store cannot be used. Only its start can find that out."""
    shop = Endpoint(name, store=create_async_engine("sqlite+aiosqlite://"), transport="memory://lifespan")

    @shop.handler(type="Any")
    async def take(message: bytes) -> None:
        """Do nothing."""

    return shop


def fastapi(around: Any) -> FastAPI:
    """Make an application with several routers, each of which adds a lifespan around the application's."""
    app = FastAPI(lifespan=around)
    for number in range(5):
        app.include_router(APIRouter(prefix=f"/{number}"))
    return app


async def started(app: Any) -> dict[str, Any]:
    """Start an application as a server does; gives what it answers."""
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        answers.append(message)

    with pytest.raises(SetupError):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    (answer,) = answers
    return answer


@pytest.mark.parametrize("worker", [True, False])
@pytest.mark.parametrize("make", [fastapi, lambda around: Starlette(lifespan=around)])
async def test_a_wrong_set_up_is_reported_as_one_line(make: Any, worker: bool) -> None:  # noqa: FBT001 - a parameter
    """However many lifespans are around it; all of its traceback is in the log."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("onceonly.http")
    before, logger.level = logger.level, logging.DEBUG
    logger.addHandler(handler)
    try:
        answer = await started(make(lifespan(wrong(), worker=worker)))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert answer["type"] == "lifespan.startup.failed"
    (line,) = answer["message"].strip().splitlines()
    assert line.startswith(PROBLEM)
    (record,) = [each for each in records if each.getMessage() == "application lifespan failed"]
    assert record.exc_info is not None


async def test_tracebacks_are_whole_again_afterwards() -> None:
    """Also when two lifespans around each other fail for one reason."""

    @asynccontextmanager
    async def both(app: Any) -> Any:
        async with lifespan()(app), lifespan(wrong())(app):
            yield

    assert len((await started(fastapi(both)))["message"].strip().splitlines()) == 1
    await asyncio.sleep(0)
    assert not hasattr(sys, "tracebacklimit")
    try:
        {}["whole"]
    except KeyError:
        assert "in test_tracebacks_are_whole_again_afterwards" in traceback.format_exc()


async def test_an_error_of_the_application_keeps_its_traceback() -> None:
    """It is a bug, not a set-up."""

    @asynccontextmanager
    async def broken(app: Any) -> Any:
        async with lifespan()(app):
            raise ZeroDivisionError("a bug")
            yield

    messages: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        messages.append(message)

    with pytest.raises(ZeroDivisionError):
        await Starlette(lifespan=broken)({"type": "lifespan", "state": {}}, receive, send)
    assert "in broken" in messages[0]["message"]


@pytest.mark.slow
async def test_uvicorn_prints_the_line_and_exits_with_an_error(tmp_path: Path) -> None:
    """What an operator sees."""
    (tmp_path / "web.py").write_text(
        "from tests.integrations.test_lifespan import fastapi, lifespan, wrong\napp = fastapi(lifespan(wrong(), worker=True))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), str(tmp_path)])}
    command = [sys.executable, "-m", "uvicorn", "web:app", "--port", "0", "--no-use-colors"]
    server = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=STDOUT)
    output = (await server.communicate())[0].decode()
    assert server.returncode == 3, output
    assert "Traceback" not in output
    errors = [line for line in output.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 2, output
    assert PROBLEM in errors[0]
