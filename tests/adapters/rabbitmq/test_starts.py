"""An endpoint inside another application whose broker is away: the application starts all the same."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceonly import Endpoint, message
from onceonly.adapters.rabbitmq.topology import LEVELS
from onceonly.model.errors import SetupError
from tests.adapters.rabbitmq.harness import EVENT, PATIENCE, Proxy, commands, line, opened, until
from tests.log_events import events
from tests.servers.available import RABBITMQ, need


@message(EVENT)
@dataclass
class Order:
    """Something to handle."""

    total: int


def shop(folder: Path, transport: str, handled: Callable[[], object]) -> Endpoint:
    """Make an endpoint that tells of each message it handles."""
    endpoint = Endpoint("shop", store=f"sqlite:///{folder}/shop.db", transport=transport)

    @endpoint.handler
    async def place(_order: Order) -> None:
        handled()

    return endpoint


async def test_an_application_starts_without_its_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The block begins, the worker keeps trying beside it, and handles what comes once the broker is there."""
    async with opened(levels=LEVELS) as broker, Proxy.before(broker.url) as proxy:
        proxy.refuses = True
        handled = asyncio.Event()
        async with shop(tmp_path, proxy.through(broker.url), handled.set).running():
            await until(line(caplog, "endpoint cannot start yet, retrying with backoff"))
            await (await broker.transport()).send(commands("m1"))
            proxy.refuses = False
            async with asyncio.timeout(PATIENCE):
                await handled.wait()
        assert events(caplog.records).count("endpoint cannot start yet, retrying with backoff") == 1


async def test_an_application_without_its_broker_stops_at_once(tmp_path: Path) -> None:
    """The exit of the block ends the waiting, and raises nothing."""
    async with Proxy.before(need(RABBITMQ)) as proxy:
        proxy.refuses = True
        async with asyncio.timeout(PATIENCE), shop(tmp_path, proxy.through(need(RABBITMQ)), print).running():
            pass


async def test_a_wrong_set_up_does_not_let_an_application_start(tmp_path: Path) -> None:
    """It is raised before the block begins."""
    wrong = need(RABBITMQ).rstrip("/") + "/nowhere"
    with pytest.raises(SetupError, match="vhost nowhere not found"):
        async with shop(tmp_path, wrong, print).running():
            pytest.fail("the block began")


async def test_a_set_up_that_shows_to_be_wrong_later_is_logged_then_and_raised_at_the_exit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The application is running by then; its log tells why the worker does not."""
    wrong = need(RABBITMQ).rstrip("/") + "/nowhere"
    async with Proxy.before(need(RABBITMQ)) as proxy:
        proxy.refuses = True
        with caplog.at_level(logging.ERROR), pytest.raises(SetupError, match="vhost nowhere not found"):
            await let_it_come(shop(tmp_path, proxy.through(wrong), print), proxy, line(caplog, "endpoint start failed"))


async def let_it_come(endpoint: Endpoint, proxy: Proxy, told: Callable[[], bool]) -> None:
    """Run an endpoint whose server comes once it has begun, until something was told."""
    async with endpoint.running():
        proxy.refuses = False
        await until(told)
