"""Writes the page of all settings: what each one means is here, and defaults and names follow from the code."""

import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from onceonly import (
    ControlMessages,
    DedupStore,
    Endpoint,
    History,
    IdempotencyKey,
    Journal,
    Peer,
    Retry,
    Shadow,
    Tokens,
    WorkerSettings,
)
from onceonly.model.wording import in_words

HEAD = """\
# Settings

Every setting of an endpoint, with its default and its unit. Times that are numbers are in seconds. Wrong values
raise `SetupError` when the endpoint is created. Commands accept some settings as options: see [command line](command-line.md).
Written by `make docs`.
"""
RETENTION = """
## Change the retention

```console
$ onceonly retention show shop:shop
$ onceonly retention set shop:shop 14d
$ onceonly retention set shop:shop forever
```

What is stored holds. The `retention=` in the code is stored at the first start of an endpoint. After that only the
command changes it, on SQL stores, document stores and dedup stores alike.

| the code says | stored | what holds |
|---|---|---|
| 7 d | nothing yet | 7 d, which is stored |
| 7 d | 14 d | 14 d. The start logs it, and `onceonly status` shows both |
| 14 d | 7 d | nothing: the start is refused, with the command that raises it |

So raise it with the command first, then in the code. Lower it in the code first, then with the command, which refuses
less than the code asks for.

| | SQL store | documents, dedup store |
|---|---|---|
| raised | at once, for all claims that are there | for marks that are made from then on, and for all that is in an entity |
| lowered | from the instant shown, at once after an earlier change | copies refused at once, data deleted after an hour |
| costs | sixteen or thirty-two tables, made by the command | one document, read once a minute by each process |

* **Meanwhile** messages are handled as usual. No claim that is known is lost by a raise. A lower retention forgets only
  what is older than it.
* **Late copies.** After a raise on documents, a copy of a message from before may be a dead letter although it is
  younger than the new retention, because its mark was dropped by the old one. It is never handled twice. `onceonly
  retention show` shows from when on all is known.
* **A mixed fleet.** A process that has not read the change goes on with the old retention for a minute at most on
  documents. On SQL it reads the change when it meets the first message of the new tables. Neither forgets what the
  other one relies on.
* **Processes of a version without this command** keep the old retention, and do not know of a change: upgrade all of
  them before the first one.
* `FOREVER`, or `forever` in commands, keeps all claims. In a SQL store it cannot be lowered again. `onceonly plan
  shop:shop --rate 500 --retention forever` reports what each year adds. In an entity of a document store the history
  then grows until the document is full: use `DedupStore` there.
* In SQL databases the endpoints with one retention share their tables. Claims of messages without a time in their id
  are kept for the retention that held when they came.
"""
SETTINGS: dict[type, tuple[str, dict[str, str]]] = {
    Endpoint: (
        "Arguments of the class. `name` comes first, all others are named.",
        {
            "name": "Name of the endpoint and of its input queue.",
            "store": "The database of handlers and records: a URL, an `AsyncEngine` or an `async_sessionmaker`.",
            "transport": "URL of the broker. Without one, a [host](../how-to/hosted.md) hands messages over, and none is sent.",
            "metadata": "SQLAlchemy `MetaData` whose tables are created at start in an embedded database.",
            "isolation": "Isolation level of units in a SQL store. Default: the URL's, or the database's.",
            "deduplication": "`History`, `DedupStore`, `Tokens`, `Shadow` or `Off`: how handled messages are recognized.",
            "blobs": "URL of the place for blobs that handlers create.",
            "peers": "URLs of services that handlers send HTTP requests to, or a `Peer` for each.",
            "projections": "[Projections](../explanation/effects.md#projections), such as caches, by name: URLs or objects.",
            "identity": "How messages of other senders are identified: `Header`, `Field` or a function.",
            "format": "How messages look on the wire, in both directions, such as `PlainJson()`.",
            "retry": "When a failed message is retried.",
            "timeout": "Seconds that one handler may take.",
            "max_hops": "Longest chain of handlers in which each sends the next message. `None`: no limit.",
            "carry_headers": "Names of headers that sent messages take over from the message that is handled.",
            "events": "Where events go that other programs take, by type: a mapping to destinations, or a function.",
            "receives_from": "Where a [host](../how-to/hosted.md) receives: a `Queue`, a `Subject` or a `Stream`.",
            "relay_after": "Seconds until the relay sends the messages of a committed record that a process left behind.",
            "unknown_types_wait": "Seconds for which a message that no handler of a process takes waits for another process.",
            "max_commit": "Longest duration of a transaction outside of handlers.",
            "manual_retry": "How long after it was given up a person may retry a dead letter.",
            "janitor": "Whether workers, hosts and relays delete expired data. If not, run `onceonly janitor`.",
            "janitor_interval": "How often expired data is deleted. Default: a minute, or less where the retention is short.",
            "presence": "Whether each process reports to a SQL store every 10 seconds, for `onceonly status`.",
            "health": "`HOST:PORT` where `onceonly run` serves `/live` and `/ready`.",
            "control": "Control messages, which finish transactions: always on a document store, on a SQL store if set.",
            "lifespan": "Factory of an async context manager around providers and worker. It is called with the endpoint.",
            "dead_letters": "Another place for dead letters than the store.",
            "worker": "Batch sizes, concurrency and times of the worker.",
            "telemetry": "Traces, such as `OpenTelemetry()`.",
            "journal": "Journal of messages in a SQL store, such as `Journal()`.",
        },
    ),
    WorkerSettings: (
        "For `worker=`.",
        {
            "batch_size": "Messages in one unit, at most. From 1 to 10,000.",
            "concurrency": "Batches that are handled at once. Default: 1, or 2 if a handler takes a connection.",
            "max_concurrency": "Smaller batches that are handled at once while handlers wait for other things than the store.",
            "budget": "Seconds during which handlers of a unit start.",
            "grace": "Seconds that a stop waits for messages in progress.",
            "wait": "Seconds that one receive waits for a first message.",
            "def_handlers": "Where `def` handlers run: `thread` or `loop`. Default: `loop` in `onceonly run`, else `thread`.",
        },
    ),
    Retry: (
        "For `retry=`.",
        {
            "immediate": "Retries that follow at once.",
            "delayed": "Retries with growing delays after those. The message then becomes a dead letter.",
            "first_delay": "Seconds before the first delayed retry.",
            "factor": "Each further delay is the one before, multiplied by this.",
            "max_delay": "Longest delay in seconds.",
            "jitter": "Fraction from 0 to 1. Each delay is lengthened at random by up to that fraction.",
        },
    ),
    History: (
        "For `deduplication=`, and its default: claims in the endpoint's own store.",
        {"retention": "How long a claim is stored at least, or `FOREVER`. It holds at the first start, then what is stored."},
    ),
    Shadow: (
        "For `deduplication=`: every message is handled, and what `History` would have done is counted.",
        {"retention": "How long a claim is stored at least, or `FOREVER`. It holds at the first start, then what is stored."},
    ),
    DedupStore: (
        "For `deduplication=`: a separate store.",
        {
            "url": "URL of the store of handled messages.",
            "retention": "How long it stores them, or `FOREVER`. It holds at the first start, then what is stored.",
        },
    ),
    Tokens: (
        "For `deduplication=`: a message is handled only while its token is live.",
        {
            "url": "URL of the token store. Empty: the endpoint's own SQL database.",
            "subscribers": "Every type of event that the endpoint publishes or handles, with the endpoints that receive it.",
            "sweep_after": "Age at which a token that was prepared and never became live is deleted.",
            "retention": "How long answers under clients' keys of transactions are stored.",
        },
    ),
    ControlMessages: (
        "For `control=`: always used on document stores, on SQL stores if it is set.",
        {
            "delays": "Delays between checks of an unfinished transaction. Their sum exceeds `max_commit`.",
            "max_commit": "Longest time from the beginning of a transaction to its commit.",
            "retention": "How long answers to clients and ended attempts are stored.",
            "processed_by": "Endpoint whose worker does the checks. Empty: this one.",
        },
    ),
    Peer: (
        "For `peers=`.",
        {
            "url": "Address of the service.",
            "headers": "Headers of every request, or a function that returns them, called before each request.",
            "timeout": "Seconds until a request counts as unanswered.",
            "style": "How a service that is [not ours](../how-to/third-party-calls.md) recognizes repeated requests.",
            "lookup": "Async function that finds out what became of a call whose key cannot be used any more.",
            "at_once": "Most calls of a process to a service with a `style` at the same time.",
        },
    ),
    IdempotencyKey: (
        "For `Peer(style=...)`.",
        {
            "header": "Header with the key.",
            "within": "How long the service remembers a key at least. No request is sent later, less ten minutes.",
            "in_flight": "Statuses of an answer while an earlier request with the key is in progress.",
        },
    ),
    Journal: (
        "For `journal=`.",
        {
            "keep": "How long events are stored at least.",
            "rows": "Approximate limit of rows in each of its four tables.",
        },
    ),
}


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(_section(owner, *about) for owner, about in SETTINGS.items()) + RETENTION


def defaults(owner: type) -> dict[str, str]:
    """Return the default of each argument of a class, as the page shows it."""
    return {name: _default(each.default) for name, each in inspect.signature(owner).parameters.items()}


def _section(owner: type, words: str, meanings: Mapping[str, str]) -> str:
    rows = "".join(f"| `{name}` | {default} | {meanings[name]} |\n" for name, default in defaults(owner).items())
    return f"\n## {owner.__name__}\n\n{words}\n\n| setting | default | meaning |\n|---|---|---|\n{rows}"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        text = "required"
    elif value is None:
        text = "none"
    elif isinstance(value, bool):
        text = "on" if value else "off"
    elif isinstance(value, timedelta):
        text = in_words(value) if value else "0"
    elif isinstance(value, int | float):
        text = f"{value:,}" if isinstance(value, int) else f"{value:,g}"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        text = ", ".join(map(_default, value))
    elif type(value) in SETTINGS:
        name = type(value).__name__
        text = f"[`{name}()`](#{name.lower()})"
    else:
        text = ""  # an empty text, or what a factory makes
    return text or "empty"
