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

from onceonly import DedupStore, Endpoint, SetupError, Tokens
from onceonly.cli.hints import pasteable
from onceonly.cli.targets import CommandTarget, UrlOverrides
from onceonly.config.location import locate, read_url
from onceonly.model.remote import Peer
from onceonly.sql.urls import read_url as read_sql_url
from onceonly.systems import systems
from onceonly.systems.urls import parse_address, split_url
from onceonly_dashboard.access import read_users
from onceonly_dashboard.gate import FormTokens
from tests.fuzzing import Inputs, inputs

URLS = {
    "PostgreSQL": "postgresql://me:{}@h/shop",
    "psycopg": "postgresql+psycopg://me:{}@h/shop",
    "MariaDB": "mariadb://me:{}@h/shop",
    "RabbitMQ": "amqps://me:{}@h/",
    "Redis": "redis://me:{}@h/0",
    "NATS": "nats://me:{}@h1:4222,h2",
    "a token of NATS": "nats://{}@h",
    "Kafka": "kafka://me:{}@h1:9092,h2",
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

pytestmark = pytest.mark.timeout(3600 if inputs() > 10_000 else 120)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error, its causes and its contexts, also those that a traceback leaves out."""
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


SCHEMES = (*(url.partition("://")[0] for url in URLS.values()), "mysql", "rediss", "nats+tls")
PLACES = tuple(url.partition("{}")[2] for url in URLS.values())
LETTERS = "@:/?#[]%&=;+,. \t\n\r\\'\"0aZ\u2100\udc80\x00"
NAMES = ("prefix", "lease", "timeout", "endpoint", "max_body", "x")


def any_text(inputs: Inputs) -> str:
    """Return a short text, half of its letters with a meaning in URLs."""
    letters = LETTERS if inputs.random() < 0.5 else "".join(chr(inputs.randrange(0x3000)) for _ in range(8))
    return inputs.word(letters, 8)


def any_options(inputs: Inputs) -> str:
    """Return options of a URL."""
    return "&".join(
        f"{inputs.choice(NAMES) if inputs.random() < 0.7 else any_text(inputs)}={any_text(inputs)}"
        for _ in range(inputs.randrange(4))
    )


@pytest.mark.parametrize(
    ("scheme", "login", "place"),
    [("mongodb", f"u:[{FIRST}", "@h/shop"), ("azure-table", f"u:\u2100{FIRST}", "@account/shop")],
)
def test_a_login_that_was_once_shown_is_hidden(scheme: str, login: str, place: str) -> None:
    """Found by the test below."""
    hides_its_login(scheme, f"{login}{place}")


def test_fuzz_urls() -> None:
    """They are a location or a SetupError; nothing of the password is shown."""
    inputs = Inputs()
    for _ in inputs.rounds():
        first, second, third, last = (any_text(inputs) for _ in range(4))
        options = any_options(inputs)
        login = f"{first}{second}{FIRST}{third}{SECOND}{last}"
        hides_its_login(inputs.choice(SCHEMES), f"{login}{inputs.choice(PLACES)}{'?' if options else ''}{options}")


def hides_its_login(scheme: str, rest: str) -> None:
    """Read a URL in every role."""
    url = f"{scheme}://{rest}"
    for role in ROLES:
        assert_hidden(shown_by(locate, url, role))
    if scheme.startswith(("postgresql", "ma", "my")):
        assert_hidden(shown_by(read_sql_url, url))


@pytest.mark.parametrize(
    ("scheme", "rest"),
    [
        ("azure-blob", "//account/shop?endpoint=http://["),
        ("s3", "//bucket?endpoint=http://["),
        ("postgresql", "//h:" + "9" * 5000 + "/shop"),
        ("mongodb", "//[/shop"),
    ],
)
def test_a_url_that_once_raised_something_else_is_refused(scheme: str, rest: str) -> None:
    """Found by the test below."""
    is_location_or_refused(scheme, rest)


def test_fuzz_texts_as_urls() -> None:
    """They are a location or a SetupError."""
    inputs = Inputs()
    for _ in inputs.rounds():
        rest = inputs.choice((any_text(inputs), f"//{any_text(inputs)}/{any_text(inputs)}?{any_options(inputs)}"))
        is_location_or_refused(inputs.choice(SCHEMES) if inputs.random() < 0.8 else any_text(inputs), rest)


def is_location_or_refused(scheme: str, rest: str) -> None:
    """Read a text in every role."""
    for role in ROLES:
        shown_by(locate, f"{scheme}:{rest}", role)
    shown_by(Peer, f"http:{rest}")


def any_variable(inputs: Inputs) -> str:
    """Return the value of an environment variable, perhaps a connection string of Azure."""
    if inputs.random() < 0.5:
        return inputs.word(LETTERS, 60)
    place = inputs.choice(("AccountName", "TableEndpoint", "BlobEndpoint"))
    secret = inputs.choice(("AccountKey", "SharedAccessSignature", "BlobEndpoint"))
    account = inputs.choice(("account", any_text(inputs)))
    return f"{place}={account};{secret}={any_text(inputs)};EndpointSuffix={any_text(inputs)}"


@pytest.mark.parametrize(
    "value", [f"AccountName=account;AccountKey={FIRST}{SECOND}", "AccountName=account;BlobEndpoint=http://["]
)
def test_a_variable_that_was_once_shown_is_hidden(value: str) -> None:
    """Found by the test below."""
    hides_its_variable(value)


def test_fuzz_environment_variables() -> None:
    """Each is read or refused by a SetupError, and a secret is not shown."""
    inputs = Inputs()
    for _ in inputs.rounds():
        hides_its_variable(any_variable(inputs))


def hides_its_variable(value: str) -> None:
    """Read each variable with this value. No environment has a zero character, or text that is not of the system's encoding."""
    value = value.replace("\0", "")
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
