"""Commands for an endpoint without a transport, whose messages a host hands over."""

import pytest

from tests.cli.terminal import Terminal

PROGRAM = """
from onceonly import Endpoint
shop = Endpoint("shop", store="sqlite:///shop.db")

@shop.handler(type="Order")
async def take(order: dict) -> None: ...
"""


@pytest.fixture(autouse=True)
def program(onceonly: Terminal) -> None:
    """Write the program."""
    (onceonly.folder / "hosted_shop.py").write_text(PROGRAM)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "hosted_shop:shop"),
        ("run", "hosted_shop:shop", "--drain"),
        ("topology", "create", "hosted_shop:shop"),
        ("relay", "hosted_shop:shop"),
    ],
)
def test_what_needs_a_queue_says_what_to_set(onceonly: Terminal, arguments: tuple[str, ...]) -> None:
    """Exit code 2, as for any wrong configuration."""
    ended = onceonly(*arguments)
    assert ended.code == 2
    assert 'set transport="..."' in ended.err


@pytest.mark.parametrize("arguments", [("status",), ("dead", "list"), ("schema", "create"), ("janitor",)])
def test_what_needs_the_store_alone_works(onceonly: Terminal, arguments: tuple[str, ...]) -> None:
    """The queue has no numbers in the status."""
    assert onceonly("schema", "create", "hosted_shop:shop").code == 0
    ended = onceonly(*arguments, "hosted_shop:shop")
    assert (ended.code, ended.err) == (0, "")
