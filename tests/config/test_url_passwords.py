"""Nothing of a password in a URL is ever shown, whatever characters it has and whatever is wrong with the URL.

`ONCEONLY_FUZZ=100000 pytest tests/config/test_url_passwords.py` tries more URLs and environments.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from onceonly import DedupStore, Endpoint, SetupError, Tokens
from onceonly.cli.hints import pasteable
from onceonly.cli.places import CommandTarget, UrlOverrides
from onceonly.config.location import locate, read_url
from onceonly.dashboard.access import read_users
from onceonly.dashboard.gate import FormTokens
from onceonly.model.address import parse_address
from onceonly.model.peer import Peer
from onceonly.sql.urls import read_url as read_sql_url
from onceonly.systems import systems
from onceonly.systems.urls import split_url
from tests.fuzzing import inputs

URLS = {
    "PostgreSQL": "postgresql://me:{}@h/shop",
    "psycopg": "postgresql+psycopg://me:{}@h/shop",
    "MariaDB": "mariadb://me:{}@h/shop",
    "RabbitMQ": "amqps://me:{}@h/",
    "Redis": "redis://me:{}@h/0",
    "NATS": "nats://me:{}@h1:4222,h2",
    "a token of NATS": "nats://{}@h",
    "MongoDB": "mongodb://me:{}@h1,h2:99/shop",
    "Cosmos DB": "cosmos://:{}@h/shop/orders",
    "Service Bus": "servicebus://me:{}@h.servicebus.windows.net",
    "Azure tables": "azure-table://me:{}@account/shop",
    "Azure blobs": "azure-blob://me:{}@account/shop",
    "Azure queues": "azure-queue://me:{}@account/shop",
    "SQS": "sqs://KEY:{}@eu-central-1",
    "DynamoDB": "dynamodb://KEY:{}@eu-central-1/shop",
    "S3": "s3://KEY:{}@bucket/shop",
}
RAW = "@:/?#[]"
FIRST, SECOND = "Hunter", "zXqZ"
PASSWORDS = [
    f"{FIRST}{{}}{SECOND}",
    f"{{}}{FIRST}{SECOND}",
    f"{FIRST}{SECOND}{{}}",
    f"{FIRST}{{}}lease={SECOND}",
    f"{FIRST}:1{{}}{SECOND}",
]
ROLES = ("store", "transport", "blobs")
FUZZED = settings(max_examples=inputs(), deadline=None, suppress_health_check=list(HealthCheck), database=None)

pytestmark = pytest.mark.timeout(3600 if inputs() > 10_000 else 120)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error, its causes and its contexts, also those that a traceback leaves out."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


def shown_by(read: Callable[..., Any], *arguments: object) -> str:
    """Return all that can be shown of what is read, or of the SetupError."""
    try:
        found = read(*arguments)
    except SetupError as error:
        if others := [each for each in chain(error) if not isinstance(each, SetupError)]:
            raise AssertionError(f"causes or contexts that may repeat the URL: {others}") from error
        return "\n".join(f"{each!s} {each!r}" for each in chain(error))
    return f"{found!s} {found!r}"


def assert_hidden(text: str) -> None:
    """Check that no part of the password is there."""
    assert FIRST.lower() not in text.lower()
    assert SECOND.lower() not in text.lower()


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("system", URLS)
def test_a_raw_character_in_a_password_is_refused_before_anything_reads_the_url(system: str, raw: str) -> None:
    """By every role and every function that reads URLs, with how to write it."""
    for password in PASSWORDS:
        url = URLS[system].format(password.format(raw))
        is_clear = system != "a token of NATS" or not (url.startswith("nats:///") or (raw == ":" and url.count(":") == 2))
        reading = (read_sql_url, partial(split_url, service="toy", example="toy://h"), *addresses(url))
        shown = [shown_by(locate, url, role) for role in ROLES] + [shown_by(read, url) for read in reading if is_clear]
        for text in shown:
            assert_hidden(text)
            assert "Write @ as %40" in text or not is_clear
        assert_hidden(pasteable("`onceonly schema create module:endpoint`", ["schema", "check", url]))


def addresses(url: str) -> list[Callable[[str], object]]:
    """Return what reads the URLs of this system."""
    address = systems()[url.partition(":")[0].partition("+")[0]].address
    return [] if address is None else [address]


@pytest.mark.parametrize("system", URLS)
def test_an_encoded_password_is_read_and_not_shown(system: str) -> None:
    """By the text and the `repr` of what is read, which tracebacks with variables show."""
    password = "SHVudGVyelhxWjEyMzQ=" if "Azure" in system else f"{FIRST}{RAW}%{SECOND}"
    secret = quote(password, safe="")
    url = URLS[system].format(secret)
    for read in (read_url, *addresses(url)):
        found = read(url)
        text = f"{found!s} {found!r}"
        assert_hidden(text)
        assert secret not in text
        assert password not in text


def test_no_setting_shows_its_url() -> None:
    """Nor what a command line was given."""
    url = f"redis://me:{FIRST}{SECOND}@h/0"
    tokens = Tokens(url)
    shop = Endpoint(
        "shop",
        store=f"postgresql://me:{FIRST}@h/shop",
        transport=f"amqp://me:{FIRST}@h/",
        dead_letters=f"mysql://me:{FIRST}@h/letters",
        blobs=f"s3://me:{SECOND}@bucket",
        deduplication=tokens,
    )
    target = CommandTarget("shop", url, url, url, shop.settings)
    for each in (shop, shop.settings, shop.settings.plan, tokens, DedupStore(url), UrlOverrides(url, url), target):
        assert_hidden(f"{each!s} {each!r}")


TEXT = st.text(max_size=8) | st.text("@:/?#[]%&=;+,. \t\n\r\\'\"0aZ\u2100\udc80", max_size=8)
SCHEMES = st.sampled_from([url.partition("://")[0] for url in URLS.values()]) | st.sampled_from(["mysql", "rediss", "nats+tls"])
PLACES = st.sampled_from([url.partition("{}")[2] for url in URLS.values()])
OPTIONS = st.lists(
    st.builds("{}={}".format, st.sampled_from(["prefix", "lease", "timeout", "endpoint", "max_body", "x"]) | TEXT, TEXT),
    max_size=3,
).map("&".join)


LOGINS = st.builds(f"{{}}{{}}{FIRST}{{}}{SECOND}{{}}".format, TEXT, TEXT, TEXT, TEXT)


@FUZZED
@example("mongodb", f"u:[{FIRST}", "@h/shop", "")
@example("azure-table", f"u:\u2100{FIRST}", "@account/shop", "")
@given(SCHEMES, LOGINS, PLACES, OPTIONS)
def test_random_urls(scheme: str, login: str, place: str, options: str) -> None:
    """They are a location or a SetupError; nothing of the password is shown."""
    url = f"{scheme}://{login}{place}{'?' if options else ''}{options}"
    for role in ROLES:
        assert_hidden(shown_by(locate, url, role))
    if scheme.startswith(("postgresql", "ma", "my")):
        assert_hidden(shown_by(read_sql_url, url))


@FUZZED
@example("azure-blob", "//account/shop?endpoint=http://[")
@example("s3", "//bucket?endpoint=http://[")
@example("postgresql", "//h:" + "9" * 5000 + "/shop")
@example("mongodb", "//[/shop")
@given(SCHEMES | TEXT, TEXT | st.builds("//{}/{}?{}".format, TEXT, TEXT, OPTIONS))
def test_random_texts(scheme: str, rest: str) -> None:
    """They are a location or a SetupError."""
    for role in ROLES:
        shown_by(locate, f"{scheme}:{rest}", role)
    shown_by(Peer, f"http:{rest}")


VARIABLE = st.text(st.characters(exclude_characters="\0"), max_size=60) | st.builds(
    "{}={};{}={};EndpointSuffix={}".format,
    st.sampled_from(["AccountName", "TableEndpoint", "BlobEndpoint"]),
    st.just("account") | TEXT,
    st.sampled_from(["AccountKey", "SharedAccessSignature", "BlobEndpoint"]),
    TEXT,
    TEXT,
).map(lambda text: text.replace("\0", ""))


@FUZZED
@example(f"AccountName=account;AccountKey={FIRST}{SECOND}")
@example("AccountName=account;BlobEndpoint=http://[")
@given(VARIABLE)
def test_random_environments(value: str) -> None:
    """Each variable is read or refused by a SetupError, and a secret is not shown."""
    value = value.encode(errors="surrogateescape").decode(errors="surrogateescape") if _is_possible(value) else ""
    secret = f"{value}{FIRST}{SECOND}"
    variables = {"AZURE_STORAGE_CONNECTION_STRING": f"{value};AccountKey={FIRST}{SECOND}", "AZURE_COSMOS_KEY": secret}
    with patch.dict(os.environ, variables):
        for url in ("azure-table://account/shop", "azure-blob://account/shop/x", "cosmos://h/shop/orders"):
            for read in addresses(url):
                assert_hidden(shown_by(read, url))
    shown_by(UrlOverrides(value or None, value or None).settings, SHOP)
    assert_hidden(shown_by(UrlOverrides(f"redis://me:{secret}@h/0").settings, SHOP))
    shown_by(_addressed, value)
    shown_by(read_users, value, "variable")
    shown_by(FormTokens, value)


SHOP = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///shop.db")


def _is_possible(value: str) -> bool:
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _addressed(value: str) -> object:
    try:
        return parse_address(value)
    except ValueError as error:
        problem = str(error)
    raise SetupError(problem)
