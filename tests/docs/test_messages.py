"""The program of docs/reference/messages.md works as the page says."""

from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import text

from onceonly import testing
from onceonly.config.location import read_url
from onceonly.model.headers import LONGEST_NAME, LONGEST_VALUE, MOST_HEADER_BYTES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "messages.md"
BROKERS = {
    "NATS": "nats://localhost",
    "Kafka": "kafka://localhost",
    "RabbitMQ": "amqp://localhost",
    "Redis": "redis://localhost",
    "SQS": "sqs://eu-west-1",
    "Service Bus": "servicebus://name.servicebus.windows.net",
    "Storage Queues": "azure-queue://account",
    "SQL": "postgresql://localhost/shop",
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the page's program as a user's module."""
    monkeypatch.chdir(tmp_path)
    blocks = [block.split("```")[0] for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]
    module = ModuleType("shop")
    monkeypatch.setitem(__import__("sys").modules, "shop", module)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), module.__dict__)  # noqa: S102 - the page's program
    return module


async def test_the_pages_program_sends_what_the_page_says(shop: ModuleType) -> None:
    """A request that comes twice is handled once, and its tenant is carried along. Without a tenant it is rejected."""
    async with testing.run(shop.shop) as t:
        async with t.session() as session:
            await session.execute(text("CREATE TABLE audit (tenant TEXT)"))
        for _ in range(2):
            await shop.place("7", "acme")
            await t.settle()
        command, event = t.sent
        assert (command.message.id, command.headers, command.copies) == ("order-7", {"tenant": "acme"}, 2)
        assert event == shop.OrderPlaced("7")
        assert (event.headers, event.key, event.copies) == ({"tenant": "acme", "channel": "web"}, "7", 1)
        await t.deliver(shop.PlaceOrder("8"))
        assert [letter.reason for letter in t.dead_letters] == ["the message has no tenant"]
        async with t.session() as session:
            assert (await session.execute(text("SELECT tenant FROM audit"))).scalars().all() == ["acme"]
        assert event.expires == t.clock.now() + timedelta(hours=1) // timedelta(milliseconds=1)


def test_the_page_names_the_limits() -> None:
    """As the code has them."""
    assert (LONGEST_NAME, LONGEST_VALUE, MOST_HEADER_BYTES) == (128, 8 * 1024, 16 * 1024)
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert all(limit in words for limit in ("128 characters at most", "8 KiB at most", "16 KiB at most"))


def test_the_table_of_destinations_is_that_of_the_transports() -> None:
    """Each kind that a transport declares has something else than "no" in its column."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Destinations that are not endpoints\n")[2]
    head, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    columns = [cell.strip() for cell in head.strip("|").split("|")][1:]
    assert columns == list(BROKERS)
    kinds: dict[str, set[str]] = {column: set() for column in columns}
    for line in lines:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if name.startswith("`"):
            kind = name.strip("`").partition("(")[0].lower()
            for column, cell in zip(columns, cells, strict=True):
                kinds[column] |= {kind} if cell != "no" else set()
    for column, url in BROKERS.items():
        traits = read_url(url).traits
        assert traits is not None
        assert kinds[column] == {rule.kind for rule in traits.destinations}
