"""A package of somebody else adds a broker, by public names alone. tests/docs/test_reference.py checks its imports."""

import re

import pytest

from onceonly_conformance import TransportSuite
from onceonly_conformance.suite import rules
from tests.plugins.packages import TOY_BROKER, Shell

pytestmark = pytest.mark.slow

SHOP = """
import asyncio
from dataclasses import dataclass

from onceonly import Context, Endpoint

URL = "toymq://shops"
shop = Endpoint("shop", store="memory://shop", transport=URL)
mail = Endpoint("mail", store="memory://mail", transport=URL)
arrived = asyncio.Event()


@dataclass
class PlaceOrder:
    order_id: str


@dataclass
class SendMail:
    order_id: str


@shop.handler
async def place(message: PlaceOrder, context: Context) -> None:
    context.send(SendMail(message.order_id), to="mail")


@mail.handler
async def send(message: SendMail) -> None:
    print("mail for", message.order_id)
    arrived.set()


async def main():
    async with mail.running(), shop.running():
        async with shop.transaction() as tx:
            tx.send(PlaceOrder("A"), to="shop")
        async with asyncio.timeout(30):
            await arrived.wait()


asyncio.run(main())
"""


def test_the_toy_broker_passes_the_conformance_suite(broker_shell: Shell) -> None:
    """Run as its author would, by pytest."""
    options = ["-q", "-p", "no:cacheprovider", "-c", str(TOY_BROKER / "pyproject.toml")]
    printed = broker_shell.run("-m", "pytest", *options, str(TOY_BROKER / "tests"))
    assert f"{len(rules(TransportSuite))} passed" in printed
    assert re.search(r"\d+ (failed|error)", printed) is None


def test_endpoints_send_messages_through_the_toy_broker(broker_shell: Shell) -> None:
    """Two endpoints of one process, and a transaction."""
    assert broker_shell.python(SHOP) == "mail for A\n"
