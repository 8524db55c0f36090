"""Writes the page of all URLs and their options: what each option means is here, and the rest follows from the systems."""

from collections.abc import Mapping
from typing import NamedTuple

from onceonly.systems import Driver, Role, System, driver_of, system_of

HEAD = """\
# URLs and their options

A URL names a database, a broker or a service. Options follow a `?` and are separated by `&`. An unknown option, an
option that is set twice and a wrong value raise `SetupError` when the endpoint is created. Options in seconds take
up to three decimals, unless they are whole seconds. Switches take `true` or `false`. In the user and the
password, write `@` as `%40`, `:` as `%3A`, `/` as `%2F`, `?` as `%3F`, `#` as `%23`, `[` as `%5B`, `]` as `%5D`, and `+`
as `%2B`. Write `@` as `%40` everywhere else, except in the path of a file. Another URL is refused before anything reads
it, and the error shows nothing of it. The same table of another package's system is on that package's own page: see
[write a transport or a store](../how-to/systems.md).
Written by `make docs`.

## Schemes

| scheme | system | driver | extra | settings that take it |
|---|---|---|---|---|
"""
NO_DRIVERS = {"sqlalchemy", "aiohttp"}
"""Packages that drivers need."""
ROLES: Mapping[Role, str] = {
    "store": "`store`",
    "transport": "`transport`",
    "deduplication": "`DedupStore`",
    "tokens": "`Tokens`",
    "blobs": "`blobs`",
    "dead_letters": "`dead_letters`",
    "projections": "`projections`",
}


class Option(NamedTuple):
    """One option. `default` is the text that has the same effect in a URL, or None where no text has.

    `needs` is the text of another option that has to be set as well.
    """

    default: str | None
    meaning: str
    needs: str = ""


class Family(NamedTuple):
    """URLs with the same options. `example` is a complete URL that accepts all of them."""

    schemes: tuple[str, ...]
    example: str
    words: str
    options: Mapping[str, Option]


_PREFIX = "First part of all names. Endpoints that exchange messages use the same."
_ANSWER = "Seconds to wait for an answer."
_LEASE = "Seconds until what a silent process held is delivered again."
_TABLES = {
    "prefix": Option("onceonly_", "First part of the table names: at most 32 of `a-z`, `0-9` and `_`."),
    "isolation": Option(None, "Isolation level of units. Default: that of the database."),
    "create": Option("true", "Whether tables are created at start, in a database without a server."),
    "timeout": Option("5", "Seconds to wait for a lock."),
    "lease": Option("30", f"{_LEASE} For queues in this database."),
}
_TLS = {
    "cafile": Option(None, "File with the certificate authorities. For TLS."),
    "certfile": Option(None, "File with the client's certificate. For TLS."),
    "keyfile": Option(None, "File with the key of that certificate. For TLS."),
    "verify": Option("true", "Whether the server's certificate is verified. For TLS."),
}
_AZURE = "Azure credentials are the key in the URL, `AZURE_STORAGE_CONNECTION_STRING`, or what `azure-identity` finds."
_AWS = "AWS credentials are in the URL, or where the AWS SDK finds them."
URLS = {
    "SQLite": Family(
        ("sqlite",),
        "sqlite:///shop.db",
        "The path follows three slashes. A fourth one makes it absolute.",
        _TABLES,
    ),
    "PostgreSQL": Family(
        ("postgresql",),
        "postgresql://user:password@host:5432/database",
        "`postgresql+psycopg://` selects the driver psycopg. The options for TLS mean what they mean to PostgreSQL's own "
        "clients. Without them, `PGSSLMODE` and `PGSSLROOTCERT` are used.",
        {
            **_TABLES,
            "schema": Option(None, "Schema of onceonly's tables. Default: that of the connection."),
            "pgbouncer": Option(None, "Whether a pooler such as PgBouncer is in front. Default: detected."),
            "sslmode": Option(
                None,
                "TLS: `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`. Default: `verify-full` with "
                "another of these options, else `prefer`.",
            ),
            "sslrootcert": Option(
                None, "File with the certificate authorities, or `system` for those of this machine. For TLS."
            ),
            "sslcert": Option(None, "File with the client's certificate. For TLS.", needs="sslkey=client.key"),
            "sslkey": Option(None, "File with the key of that certificate. For TLS.", needs="sslcert=client.pem"),
        },
    ),
    "MariaDB": Family(
        ("mariadb", "mysql"),
        "mariadb://user:password@host:3306/database",
        "Both schemes work with both: the server says which it is at connect. Options for TLS are named as in their clients.",
        {
            **_TABLES,
            "ssl-mode": Option(
                None,
                "TLS: `DISABLED`, `REQUIRED`, `VERIFY_CA` or `VERIFY_IDENTITY`. Default: `VERIFY_IDENTITY` with another of "
                "these options, else `DISABLED`.",
            ),
            "ssl-ca": Option(None, "File with the certificate authorities. Default: those of this machine. For TLS."),
            "ssl-cert": Option(None, "File with the client's certificate. For TLS.", needs="ssl-key=client.key"),
            "ssl-key": Option(None, "File with the key of that certificate. For TLS.", needs="ssl-cert=client.pem"),
        },
    ),
    "RabbitMQ": Family(
        ("amqp", "amqps"),
        "amqps://user:password@host:5671/vhost",
        "`amqps://` is for TLS.",
        {
            "prefix": Option("", _PREFIX),
            "lease": Option("30", "Heartbeat in seconds, at least 5. A silent process loses its deliveries."),
            "max_body": Option("1048576", "Largest body in bytes, at most 134217728."),
            "timeout": Option("30", _ANSWER),
            "management": Option("", "URL of the management HTTP API, for `onceonly status`. Without a user."),
            **_TLS,
            "capath": Option(None, "Folder with the certificate authorities. For TLS."),
        },
    ),
    "NATS JetStream": Family(
        ("nats",),
        "nats+tls://user:password@host1:4222,host2:4222",
        "`nats+tls://` is for TLS. A user without a password is a token.",
        {
            "prefix": Option("", _PREFIX),
            "lease": Option("30", f"{_LEASE} It is the consumer's `ack_wait`."),
            "max_body": Option("983040", "Largest body in bytes. The server's `max_payload` must be 65536 larger."),
            "timeout": Option("30", _ANSWER),
            "replicas": Option("1", "Copies of each new stream in the cluster, at most 5."),
            "creds": Option("", "File with the credentials of a user."),
            **_TLS,
        },
    ),
    "Redis": Family(
        ("redis", "rediss"),
        "rediss://user:password@host:6379/0",
        "`rediss://` is for TLS.",
        {
            "prefix": Option("onceonly:", "First part of all keys."),
            "timeout": Option("10", _ANSWER),
            "cafile": Option(None, "File with the certificate authorities. For TLS."),
            "lease": Option("30", f"{_LEASE} For queues."),
            "max_body": Option("1048576", "Largest body in bytes, at most 134217728. For queues."),
            "replicas": Option("0", "Replicas that must have a message before it counts as sent. For queues."),
        },
    ),
    "Kafka": Family(
        ("kafka",),
        "kafka+tls://user:password@host1:9092,host2:9092",
        "It sends only: see [Kafka](../how-to/kafka.md). `kafka+tls://` is for TLS.",
        {
            "max_body": Option("934464", "Largest body in bytes. The topic's `max.message.bytes` must be 65536 larger."),
            "timeout": Option("30", _ANSWER),
            "sasl": Option("PLAIN", "How the user logs in: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`."),
            **_TLS,
        },
    ),
    "SQS": Family(
        ("sqs",),
        "sqs://key:secret@eu-central-1",
        f"The host is the region. {_AWS}",
        {
            "prefix": Option("", _PREFIX),
            "lease": Option("30", f"{_LEASE} Whole seconds, at most 43200."),
            "fifo": Option("false", "Whether queues and topics are FIFO. The same for all endpoints of a prefix."),
            "max_body": Option("737280", "Largest body in bytes, at most 737280."),
            "endpoint": Option("", "URL of another service with the protocols of SQS and SNS. Default: AWS."),
            "timeout": Option("10", "Seconds to wait for an answer. For messages 20 seconds longer."),
        },
    ),
    "Azure Service Bus": Family(
        ("servicebus",),
        "servicebus://RootManageSharedAccessKey:key@name.servicebus.windows.net",
        "The user is the name of a key. Without one, `azure-identity` finds a credential.",
        {
            "prefix": Option("", _PREFIX),
            "lease": Option("60", "Lock duration of new queues, from 5 to 300 whole seconds."),
            "max_body": Option("196608", "Largest body in bytes."),
            "timeout": Option("30", _ANSWER),
            "sessions": Option("false", "Whether queues have sessions, which keep the order of a key."),
            "manage": Option("true", "Whether queues are created and read over HTTPS. Needs the right Manage."),
            "emulator": Option("false", "Whether to connect without TLS, to an emulator. Its URL may have a port."),
            "management_port": Option("5300", "Port for HTTP of an emulator.", needs="emulator=true"),
        },
    ),
    "Azure Queue Storage": Family(
        ("azure-queue",),
        "azure-queue://:a2V5@account/prefix",
        _AZURE,
        {
            "prefix": Option("", "Added to the prefix in the path. Together at most 20 letters and digits."),
            "lease": Option("30", f"{_LEASE} Whole seconds, at most 604800."),
            "max_body": Option("28672", "Largest body in bytes, at most 45056."),
            "poll": Option("1", "Longest pause in seconds between two requests to an empty queue."),
            "timeout": Option("10", _ANSWER),
            "endpoint": Option("", "Address of the service. Default: that of the account."),
        },
    ),
    "DynamoDB": Family(
        ("dynamodb",),
        "dynamodb://key:secret@eu-central-1/table",
        f"The host is the region. {_AWS}",
        {
            "prefix": Option("onceonly/", "First part of all keys: at most 64 letters, digits, and `_`, `.`, `/`, `-`."),
            "endpoint": Option("", "URL of another service with the protocol of DynamoDB. Default: AWS."),
            "timeout": Option("10", _ANSWER),
            "version_attribute": Option("_version", "Attribute of the application's items: a number, new with every write."),
        },
    ),
    "S3": Family(
        ("s3",),
        "s3://key:secret@bucket/prefix",
        _AWS,
        {
            "region": Option("", "Region of the bucket. Default: that of the AWS SDK."),
            "endpoint": Option("", "URL of another service with the protocol of S3. Default: AWS."),
            "timeout": Option("10", _ANSWER),
        },
    ),
    "Azure Table Storage": Family(
        ("azure-table",),
        "azure-table://:a2V5@account/table",
        _AZURE,
        {"endpoint": Option("", "Address of the service. Default: that of the account.")},
    ),
    "Azure Blob Storage": Family(
        ("azure-blob",),
        "azure-blob://:a2V5@account/container/prefix",
        _AZURE,
        {"endpoint": Option("", "Address of the service. Default: that of the account.")},
    ),
    "Cosmos DB": Family(
        ("cosmos",),
        "cosmos://:key@account.documents.azure.com/database/container",
        "The key is the password in the URL, or `AZURE_COSMOS_KEY`. Without one, `azure-identity` finds a credential.",
        {
            "emulator": Option("false", "Whether it is an emulator, whose certificate is not verified."),
            "partition_key": Option(
                None,
                "Partition key of your own container, such as `/tenantId` or `/tenantId,/userId`. Handlers then write your "
                "documents with their entity: see [Cosmos DB](cosmos.md).",
            ),
            "prefix": Option("", "Beginning of the id of every item, so that endpoints can share a container."),
            "timeout": Option("10", _ANSWER),
        },
    ),
    "MongoDB": Family(
        ("mongodb",),
        "mongodb://user:password@host:27017/database",
        "A replica set. `mongodb+srv://` works too. All other options are those of the driver. onceonly itself sets the ones "
        "about writes, reads and retries, and refuses them in the URL.",
        {
            "collection": Option("onceonly", "Collection of the documents."),
            "prefix": Option("", "Start of every `_id`. Several endpoints or runs can share a collection."),
            "timeout": Option("10", _ANSWER),
        },
    ),
    "RavenDB": Family(
        ("ravendb",),
        "ravendb+tls://host/database",
        "`ravendb+tls://` is for HTTPS, and needs the certificate of a client: `certfile=`. RavenDB has no passwords. "
        "`ravendb://host:8080/database` is a server without security.",
        {
            "prefix": Option(
                "onceonly", "First part of all ids: at most 32 of `a-z`, `0-9`, `_`, `.` and `-`. A `/` follows it."
            ),
            "timeout": Option("10", _ANSWER),
            **_TLS,
        },
    ),
    "folder": Family(("folder",), "folder:///srv/shop/blobs", "A folder of the local file system.", {}),
    "memory": Family(("memory",), "memory://name", "The memory of the process, for tests. Endpoints share a name.", {}),
}


def page() -> str:
    """Return the whole page."""
    rows = (_row(family) for family in URLS.values())
    return HEAD + "".join(rows) + "".join(_section(name, family) for name, family in URLS.items())


def _row(family: Family) -> str:
    scheme = family.schemes[0]
    system = system_of(scheme)
    assert isinstance(system, System), scheme  # noqa: S101 - for the type checker
    drivers = [each for each in map(driver_of, [scheme, *(f"{scheme}+{name}" for name in system.drivers if name)]) if each]
    packages = dict.fromkeys(package for each in drivers for package in each.packages if package not in NO_DRIVERS)
    extras = dict.fromkeys(_extra(each) for each in drivers if _extra(each))
    roles = ", ".join(words for role, words in ROLES.items() if system.serves(role))
    schemes = ", ".join(f"`{each}`" for each in family.schemes)
    cells = (schemes, system.name, ", ".join(packages), ", ".join(f"`{each}`" for each in extras), roles)
    return f"| {' | '.join(cells)} |\n"


def _extra(driver: Driver) -> str:
    return driver.requirement.partition("[")[2].rstrip("]")


def _section(name: str, family: Family) -> str:
    rows = "".join(
        f"| `{option}` | {_default(default)} | {words} |\n" for option, (default, words, _) in family.options.items()
    )
    table = f"| option | default | meaning |\n|---|---|---|\n{rows}" if rows else "It has no options.\n"
    return f"\n## {name}\n\n```text\n{family.example}\n```\n\n{family.words}\n\n{table}"


def _default(text: str | None) -> str:
    return "none" if text is None else f"`{text}`" if text else "empty"
