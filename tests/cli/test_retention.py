"""`onceonly retention`: what is stored, what the code says, which one holds, and how it is changed."""

import re

import pytest

from tests.cli.terminal import Terminal

DAY = 86_400

TWO = """
from dataclasses import dataclass
from datetime import timedelta
from onceonly import Endpoint, History


@dataclass
class Order:
    id: str


short = Endpoint("short", {places}, deduplication=History(retention=timedelta(days={short})))
long = Endpoint("long", {places}, deduplication=History(retention=timedelta(days={long})))


@short.handler
async def order(order: Order) -> None: ...


@long.handler
async def invoice(order: Order) -> None: ...
"""
SQLITE = 'store="sqlite:///claims.db", transport="sqlite:///queue.db"'
BANK = """
from dataclasses import dataclass
from datetime import timedelta
from onceonly import DedupStore, Endpoint, Tokens


@dataclass
class Order:
    id: str


bank = Endpoint(
    "bank",
    store="sqlite:///own.db",
    transport="sqlite:///queue.db",
    deduplication=DedupStore("sqlite:///marks.db", retention=timedelta(days=1)),
)


@bank.handler
async def order(order: Order) -> None: ...
"""


@pytest.fixture
def two(onceonly: Terminal) -> Terminal:
    """Two endpoints in one database, whose code asks for a day each."""
    write(onceonly, short=1, long=1)
    onceonly("schema", "create", "two:short")
    return onceonly


def write(onceonly: Terminal, *, short: float, long: float) -> None:
    (onceonly.folder / "two.py").write_text(TWO.format(places=SQLITE, short=short, long=long))


def stored(onceonly: Terminal, name: str = "two:short") -> object:
    """Return what is stored for the endpoint, in days."""
    (shown,) = onceonly("retention", "show", name, "--json").answer
    return shown["stored"] if shown["stored"] is None else shown["stored"] / DAY


def test_two_endpoints_of_one_database_and_status_shows_both(two: Terminal) -> None:
    """One day and thirty days."""
    assert two("janitor", "two:short", "two:long").code == 0
    assert two("retention", "set", "two:long", "30d").code == 0
    assert (stored(two, "two:short"), stored(two, "two:long")) == (1, 30)
    status = two("status", "two:short", "two:long", "--json").answer
    assert [each["retention"] for each in status] == ["1 d", "30 d (code: 1 d)"]
    table = two("status", "two:short", "two:long").out
    assert re.search(r"30 d", table)
    write(two, short=1, long=30)
    assert [each["retention"] for each in two("status", "two:short", "two:long", "--json").answer] == ["1 d", "30 d"]


def test_before_the_first_start_nothing_is_stored(two: Terminal) -> None:
    """The code decides then, and nothing later but the command."""
    (shown,) = two("retention", "show", "two:short", "--json").answer
    assert (shown["is_stored"], shown["stored"], shown["code"]) == (False, None, DAY)
    assert "not stored yet" in two("retention", "show", "two:short").out
    two("janitor", "two:short")
    write(two, short=0.5, long=1)
    (shown,) = two("retention", "show", "two:short", "--json").answer
    assert (shown["is_stored"], shown["stored"], shown["code"]) == (True, DAY, DAY / 2)


def test_a_start_is_refused_where_the_code_asks_for_more_than_is_stored(two: Terminal) -> None:
    """With the command that raises it, after which it starts."""
    two("janitor", "two:short")
    write(two, short=14, long=1)
    refused = two("run", "two:short", "--drain")
    assert refused.code == 2
    assert "retention is 14 d, but the claims of endpoint 'short' are kept for 1 d" in refused.error
    command = re.search(r"`onceonly (retention set two:short 14d)`", refused.error)
    assert command, refused.error
    assert two(*command[1].split()).code == 0
    assert two("run", "two:short", "--drain").code == 0


def test_what_is_stored_holds_and_is_logged_where_the_code_asks_for_less(two: Terminal) -> None:
    """Code: a day, stored: fourteen."""
    two("retention", "set", "two:short", "14d")
    started = two("run", "two:short", "--drain")
    assert started.code == 0
    assert "stored retention holds, not that of the code" in started.err
    assert "14 d" in started.err
    assert stored(two) == 14


def test_less_than_the_code_asks_for_is_refused(two: Terminal) -> None:
    """The next start would be refused: the code is changed first."""
    two("retention", "set", "two:short", "14d")
    refused = two("retention", "set", "two:short", "12h")
    assert refused.code == 2
    assert "the code of endpoint 'short' asks for a retention of 1 d" in refused.error
    write(two, short=0.5, long=1)
    assert two("retention", "set", "two:short", "12h").code == 0


@pytest.mark.parametrize(("text", "words"), [("5", "not a duration"), ("0d", "out of range"), ("30s", "span of retries")])
def test_a_retention_that_no_start_would_accept_is_refused(two: Terminal, text: str, words: str) -> None:
    """Nothing is changed."""
    write(two, short=0.0001, long=1)
    refused = two("retention", "set", "two:short", text)
    assert refused.code == 2
    assert words in refused.err


def test_forever_in_words_and_in_json(two: Terminal) -> None:
    """It has no number of seconds."""
    assert two("retention", "set", "two:short", "forever").code == 0
    assert stored(two) is None
    assert "forever" in two("retention", "show", "two:short").out
    assert two("status", "two:short", "--json").answer[0]["retention"] == "forever (code: 1 d)"


def test_the_same_in_a_dedup_store(onceonly: Terminal) -> None:
    """Its retention is in its own documents, and no store of claims has one."""
    (onceonly.folder / "bank.py").write_text(BANK)
    onceonly("schema", "create", "bank:bank")
    assert onceonly("retention", "show", "bank:bank", "--json").answer[0]["is_stored"] is False
    assert onceonly("run", "bank:bank", "--drain").code == 0
    assert stored(onceonly, "bank:bank") == 1
    assert onceonly("retention", "set", "bank:bank", "14d").code == 0
    assert onceonly("status", "bank:bank", "--json").answer[0]["retention"] == "14 d (code: 1 d)"
    refused = onceonly("retention", "set", "bank:bank", "1h")
    assert "the code of endpoint 'bank' asks for a retention of 1 d" in refused.error


def test_the_same_in_a_document_store(onceonly: Terminal, redis_url: str) -> None:
    """Raised, forever, and lowered; the document of the other endpoint stays as it is."""
    places = f'store="{redis_url}", transport="sqlite:///queue.db"'
    (onceonly.folder / "two.py").write_text(TWO.format(places=places, short=1, long=1))
    onceonly("schema", "create", "two:short")
    assert onceonly("retention", "show", "two:short", "--json").answer[0]["is_stored"] is False
    assert stored(onceonly) is None
    assert onceonly("retention", "set", "two:short", "30d").code == 0
    assert (stored(onceonly, "two:short"), stored(onceonly, "two:long")) == (30, None)
    raised = onceonly("retention", "set", "two:short", "forever")
    assert "copies beyond it become dead letters" in raised.err + raised.out
    (shown,) = onceonly("retention", "show", "two:short", "--json").answer
    assert (shown["is_stored"], shown["stored"], shown["code"]) == (True, None, DAY)
    assert shown["known_since"] > 0
    assert "forever" in onceonly("retention", "show", "two:short").out
    assert onceonly("status", "two:short", "--json").answer[0]["retention"] == "forever (code: 1 d)"
    assert onceonly("retention", "set", "two:short", "2d").code == 0
    assert stored(onceonly) == 2
    refused = onceonly("retention", "set", "two:short", "1h")
    assert (refused.code, "asks for a retention of 1 d" in refused.error) == (2, True)


def test_two_endpoints_of_one_document_store_and_status_shows_both(onceonly: Terminal, redis_url: str) -> None:
    """One day and thirty days; each has a document of its own, which the first start stores."""
    places = f'store="{redis_url}", transport="sqlite:///queue.db"'
    (onceonly.folder / "two.py").write_text(TWO.format(places=places, short=1, long=30))
    onceonly("schema", "create", "two:short")
    assert onceonly("run", "two:short", "two:long", "--drain").code == 0
    assert (stored(onceonly, "two:short"), stored(onceonly, "two:long")) == (1, 30)
    assert onceonly("retention", "set", "two:long", "60d").code == 0
    status = onceonly("status", "two:short", "two:long", "--json").answer
    assert [each["retention"] for each in status] == ["1 d", "60 d (code: 30 d)"]


def test_an_endpoint_without_a_retention_has_none_to_set(onceonly: Terminal) -> None:
    """Tokens keep nothing."""
    (onceonly.folder / "bank.py").write_text(
        BANK.replace('DedupStore("sqlite:///marks.db", retention=timedelta(days=1))', "Tokens()")
    )
    refused = onceonly("retention", "set", "bank:bank", "14d")
    assert refused.code == 2
    assert "only History, Shadow and DedupStore have a retention" in refused.error
