"""What is wrong with a URL is reported when an endpoint is defined, before any driver is imported."""

import subprocess
import sys

import pytest

from onceonly import DedupStore, Endpoint, SetupError, Tokens

STORE = "sqlite:///shop.db"
WRONG = [
    ("store", "postgresql://h:99999/shop", "port 99999: use a number from 1 to 65535"),
    ("store", "postgresql://h/shop?prefx=a_", "unknown option 'prefx' in the database URL. Supported: create, isolation"),
    ("store", "postgresql://h/shop?schema=A", "schema 'A': use a lower-case letter"),
    ("store", "postgresql://h/shop?prefix=a_&prefix=b_", "option prefix is set more than once in the database URL"),
    (
        "store",
        "postgresql+psycopg2://h/shop",
        "no adapter for this driver of PostgreSQL; use postgresql://, postgresql+asyncpg://",
    ),
    ("store", "postgres://h/shop", "unknown URL scheme 'postgres', did you mean postgresql://. Supported: azure-blob://"),
    (
        "store",
        "postgresql://h/shop?sslmode=on",
        "option sslmode='on': use disable, allow, prefer, require, verify-ca or verify-full",
    ),
    ("store", "postgresql://h/shop?sslcert=a.pem", "options sslcert and sslkey belong together: set both or none"),
    ("store", "postgresql://h/shop?sslmode=require&sslrootcert=system", "sslrootcert=system needs sslmode=verify-full"),
    ("store", "mysql://h/shop?ssl-mode=required", "option ssl-mode='required': use DISABLED, REQUIRED, VERIFY_CA or"),
    ("store", "mysql://h/shop?ssl-key=a.key", "options ssl-cert and ssl-key belong together: set both or none"),
    ("store", "mariadb://h/shop?ssl-mode=DISABLED&ssl-ca=a.pem", "ssl-mode=DISABLED with other options for TLS"),
    ("store", "sqlite:///shop.db?sslmode=require", "unknown option 'sslmode' in the database URL"),
    ("store", "mysql+pymysql://h/shop", "no adapter for this driver of MariaDB; use mysql://, mysql+asyncmy://"),
    ("store", "mariadb+asyncmy://h/shop?pgbouncer=true", "option pgbouncer is for PostgreSQL only: remove it"),
    ("store", "mysql://h/shop?schema=shop", "schema='shop': mysql has no schemas. Use ?prefix="),
    ("store", "sqlite:///shop.db?schema=shop", "schema='shop': sqlite has no schemas. Use ?prefix="),
    ("store", "sqlite+aiosqlite:///shop.db?create=perhaps", "option create='perhaps': use true or false"),
    ("transport", "sqlite:///shop.db?lease=soon", "option lease='soon': use a number of seconds"),
    ("transport", "amqp://", "this RabbitMQ URL has no host"),
    ("transport", "amqp://h/?lease=0", "option lease='0': use a number of seconds above 0"),
    ("transport", "amqp://h/?max_body=1GB", "option max_body='1GB': use a whole number of bytes from 1 to"),
    ("transport", "amqp://h/?prefetch=5", "unknown option 'prefetch' in the RabbitMQ URL. Supported: cafile"),
    ("transport", "amqp://h/?verify=false", "options for TLS in an amqp:// URL: verify. Remove them, or use amqps://"),
    ("transport", "mongodb://h/shop", "this version of onceonly has no transport for mongodb://; there is amqp://"),
    ("transport", "redis://h/0?lease=0", "option lease='0': use a number of seconds above 0"),
    ("transport", "redis://h/0?max_body=0", "option max_body='0': use a whole number of bytes from 1 to"),
    ("transport", "redis://h/0?replicas=-1", "option replicas='-1': use a whole number of replicas from 0 to 99"),
    ("deduplication", "redis://h/first", "'first' is not the number of a Redis database"),
    (
        "deduplication",
        "rediss://h/0?tls=true",
        "unknown option 'tls' in the Redis URL. Supported: cafile, lease, max_body, prefix",
    ),
    ("tokens", "redis:///0", "this Redis URL has no host"),
    ("store", "mongodb://h", "this MongoDB URL has no database"),
    ("store", "mongodb+srv://h/shop?w=0", "remove w from the MongoDB URL"),
    ("store", "cosmos://h/shop", "a Cosmos DB URL needs a database and a container"),
    ("store", "cosmos://h/shop/orders?emulator=maybe", "option emulator='maybe': use true or false"),
    ("store", "dynamodb://eu-central-1/", "a DynamoDB URL needs a region and a table"),
    (
        "store",
        "dynamodb://eu-central-1/shop?endpoint=here",
        "option endpoint: use a URL that begins with https://",
    ),
    ("store", "s3://Bucket!/shop", "an S3 URL needs a bucket"),
    ("blobs", "s3://bucket/shop?zone=1", "unknown option 'zone' in the S3 URL. Supported: endpoint, region, timeout"),
    ("store", "azure-table://ab/shop", "not a valid URL of Azure storage: use azure-table://account/table"),
    ("dead_letters", "azure-table://account/shop?sas=1", "unknown option 'sas' in the Azure table URL. Supported: endpoint"),
    ("store", "azure-blob://me:no-base64@account/shop", "the key of the Azure account account is not Base64"),
    ("blobs", "folder://shop", "a folder URL has three slashes and an absolute path"),
    ("store", "folder:///var/lib/shop", "this version of onceonly has no store for folder://"),
    ("store", "shop.db", "not a URL. Supported: azure-blob://"),
]
USABLE = [
    "mysql+asyncmy://h/shop",
    "mariadb+asyncmy://h/shop?prefix=shop_",
    "mariadb://h/shop",
    "sqlite+aiosqlite:///shop.db",
    "postgresql+asyncpg://me:p%40ss@[::1]:5432/shop?schema=shop",
    "postgresql+psycopg:///shop?pgbouncer=true",
    "postgresql://h/shop?sslmode=verify-full&sslrootcert=system",
    "mysql://h/shop?ssl-mode=REQUIRED",
]
DRIVERS = ["sqlalchemy", "aiormq", "redis", "azure", "aiobotocore", "pymongo", "asyncpg", "psycopg", "asyncmy"]


def define(role: str, url: str) -> Endpoint:
    """Define an endpoint whose only unusual setting is this URL."""
    if role in {"deduplication", "tokens"}:
        kind = DedupStore if role == "deduplication" else Tokens
        return Endpoint("shop", store=STORE, transport=STORE, deduplication=kind(url))
    return Endpoint("shop", **({"store": STORE, "transport": STORE} | {role: url}))


@pytest.mark.parametrize(("role", "url", "words"), WRONG)
def test_a_wrong_url_is_reported_when_the_endpoint_is_defined(role: str, url: str, words: str) -> None:
    """By the setting's name, with what to write instead, and without a password."""
    with pytest.raises(SetupError) as caught:
        define(role, url)
    message = str(caught.value)
    assert f"{role}='" in message
    assert words in message
    assert "no-base64" not in message


@pytest.mark.parametrize("mark", ["?", "#"])
@pytest.mark.parametrize("scheme", ["postgresql", "amqp", "redis", "mongodb"])
def test_a_password_with_an_unescaped_mark_is_not_repeated(scheme: str, mark: str) -> None:
    """What follows the mark looks like options; errors name unknown options."""
    with pytest.raises(SetupError) as caught:
        define("transport" if scheme == "amqp" else "store", f"{scheme}://me:half{mark}secret@h/shop")
    assert "secret" not in str(caught.value)
    assert "half" not in str(caught.value)
    assert "%3F" in str(caught.value)


@pytest.mark.parametrize("url", USABLE)
def test_urls_as_sqlalchemy_writes_them_can_be_used(url: str) -> None:
    """With the driver's name or without."""
    assert define("store", url).name == "shop"


def test_all_wrong_urls_are_reported_at_once() -> None:
    """A person repairs all of them before the next start."""
    with pytest.raises(SetupError) as caught:
        Endpoint("shop", store="redis://h/x", transport="amqp://h/?lease=x", blobs="folder://x", dead_letters="s3://B/")
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert [line.split("=")[0] for line in lines[1:]] == ["* store", "* dead_letters", "* transport", "* blobs"]


def test_no_driver_is_imported_for_that() -> None:
    """An endpoint can be defined where the drivers are not installed."""
    program = (
        "import sys\n"
        "from tests.config.test_locations import DRIVERS, WRONG, define\n"
        "from onceonly import SetupError\n"
        "known = set(sys.modules)\n"
        "for role, url, _ in WRONG:\n"
        "    try:\n"
        "        define(role, url)\n"
        "    except SetupError:\n"
        "        pass\n"
        "sys.exit(', '.join(sorted({name.split('.')[0] for name in set(sys.modules) - known} & set(DRIVERS))) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
