"""The price table: the example is complete, and a file that cannot be used is refused with the place of the fault."""

import pytest

from onceonly.config.prices import example_prices, prices_of, read_prices
from onceonly.model.errors import SetupError
from onceonly.systems import Family, schemes, system_of

SMALL = """
currency = "EUR"
date = 2026-01-31
[services.toy]
read = { unit = "reads", price = 1, bytes = 0 }
write = { unit = "writes", price = 2.5, bytes = 1024, first = 2 }
delete = { unit = "writes", price = 2.5, bytes = 1024 }
storage = 0.1
"""


def test_a_small_table_is_read() -> None:
    """With defaults for what is rarely needed."""
    table = read_prices(SMALL, "toy.toml")
    toy = prices_of(table, "toy", "toy.toml")
    assert (table.currency, table.date.isoformat()) == ("EUR", "2026-01-31")
    assert (toy.read.price, toy.write.first, toy.write.next, toy.overhead, toy.listing) == (1.0, 2.0, 1.0, 0, 0.0)


def test_the_example_has_every_document_service() -> None:
    """So that each can be planned without a file."""
    table = read_prices(example_prices(), "the example")
    known = {scheme for scheme in schemes() if system_of(scheme).family is Family.DOCUMENTS}
    assert {"dynamodb", "cosmos", "s3", "azure-blob", "azure-table", "redis", "mongodb"} <= known
    assert set(table.services) == known - {"rediss", "toy"}


def test_the_example_says_that_it_is_no_offer() -> None:
    """With its date."""
    text = example_prices()
    assert "examples, not offers" in text
    assert "\ndate = 2026-" in text


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("currency", "currency = ", "toy.toml is not a TOML file"),
        ('currency = "EUR"', "", "missing required field `currency`"),
        ('currency = "EUR"', 'currency = ""', "length >= 1 - at `$.currency`"),
        ("2026-01-31", '"today"', "`$.date`"),
        ("price = 1,", "price = -1,", "[services.toy] is wrong: Expected `float` >= 0.0 - at `$.read.price`"),
        ("price = 1,", 'price = "1",', "[services.toy] is wrong: Expected `float`, got `str` - at `$.read.price`"),
        ("price = 1,", "price = nan,", "Expected `float` >= 0.0 - at `$.read.price`"),
        ("price = 1,", "price = inf,", "[services.toy] is wrong: read.price is inf"),
        ("storage = 0.1", "storage = inf", "[services.toy] is wrong: storage is inf"),
        ("storage = 0.1", "", "missing required field `storage`"),
        ("storage = 0.1", "storage = 0.1\nstorrage = 2", "unknown field `storrage`"),
        ("bytes = 1024, first = 2", "bytes = 1.5", "write.bytes"),
        ("date = ", "services = 1\ndate = ", "is not a TOML file"),
        ("date = ", "prices = 1\ndate = ", "unknown field `prices`"),
    ],
)
def test_a_wrong_file_is_refused(before: str, after: str, words: str) -> None:
    """With its name, the place in it, and how to get one that is right."""
    assert before in SMALL
    with pytest.raises(SetupError) as refused:
        read_prices(SMALL.replace(before, after, 1), "toy.toml")
    assert words in str(refused.value)
    assert str(refused.value).startswith("toy.toml")


def test_a_service_without_prices_is_refused() -> None:
    """With what the table has."""
    with pytest.raises(SetupError, match=r"toy.toml has no prices for cosmos://: add a table \[services.cosmos\]. It has toy"):
        prices_of(read_prices(SMALL, "toy.toml"), "cosmos", "toy.toml")
