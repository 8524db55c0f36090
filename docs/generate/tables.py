"""Writes the page of the tables: what tables and columns contain is here, and names and types follow from the code."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Column, Table
from sqlalchemy.dialects import postgresql

from onceonly.assembly.sql import SCHEMAS
from onceonly.sql.schema import TableNames, versions_table

PREFIX = "onceonly_"
HEAD = """\
# Tables

The tables that onceonly creates in a SQL database, in the version of this release. Read them with any tool. Do not
change them: use the [commands](command-line.md). The column types are those of PostgreSQL. `onceonly schema print`
prints the statements for your database.
Written by `make docs`.

* All names start with `onceonly_`, or with the option `prefix` of the URL.
* Times are milliseconds since 1970, by the clock of the database unless a row names another one.
* A *key* is 16 bytes of a hash: of the endpoint's name and the message's source and id, unless a row names another one.
* A release that changes a table raises the version of its component.

| component | version | needed for |
|---|---|---|
"""
COMPONENTS = {
    "store": "`store`, `DedupStore`, `Tokens` and `dead_letters` in a SQL database",
    "transport": "`transport` in a SQL database",
    "documents": "documents in a SQL database, such as those of `ControlMessages`",
    "http": "HTTP requests between services",
    "journal": "`journal=Journal()`",
}
"""What each component is needed for, by the names of `SCHEMAS`."""


class Rows(NamedTuple):
    """The rows of a table: what one is, how long it stays, and what its columns contain."""

    one: str
    stay: str
    columns: Mapping[str, str]


TABLES = {
    "claims": Rows(
        "A handled message without an instant in its id.",
        "For the retention.",
        {
            "key": "Key of the message.",
            "fingerprint": "8 bytes of the body's hash.",
            "arrived_at": "When it was claimed.",
            "ring": "The ring whose retention it is kept for.",
        },
    ),
    "claim_NN": Rows(
        "A handled message, in the time bucket of its instant. One row is the label of the bucket's time slice.",
        "Until the bucket is emptied as a whole, after the retention.",
        {"key": "Key of the message.", "fingerprint": "8 bytes of the body's hash."},
    ),
    "ring": Rows(
        "The division of time into buckets, for each retention.",
        "Always.",
        {
            "number": "1 for `claim_00` to `claim_15`, N for `claim_N_00` to `claim_N_15`.",
            "width": "Length of a time slice. 0 until the first start decides.",
            "keep": "How long the last slices are kept once it is closed. 0 before.",
            "closes": "End of its last slice once it is closed. 0 before.",
        },
    ),
    "retention": Rows(
        "Where an endpoint claims, from an instant on. Empty until a retention is changed.",
        "Always.",
        {
            "endpoint": "Endpoint. Empty for those without rows of their own.",
            "since": "Instant of the first message that is claimed there.",
            "ring": "Number of the ring.",
        },
    ),
    "records": Rows(
        "A committed unit whose messages are not all sent. Or a tombstone of an attempt, with an endpoint of its own.",
        "Until its messages are sent. A tombstone for `max_commit` and an hour.",
        {
            "key": "Key of the message.",
            "endpoint": "Endpoint that handled it.",
            "source": "Source of the message.",
            "id": "Id of the message.",
            "effects": "What is to be sent and created.",
            "stored_at": "When it was committed. Of a tombstone: when it may be deleted.",
            "claim": "Key of its claim, if that is in a time bucket.",
            "taken_at": "When a relay took it last.",
        },
    ),
    "dead_letters": Rows(
        "A message that was given up.",
        "Until it is retried or deleted.",
        {
            "position": "Number in the order of storing.",
            "key": "Name of the dead letter, in hexadecimal digits.",
            "endpoint": "Endpoint that gave it up.",
            "type": "Message type.",
            "reason": "Why it was given up.",
            "stored_at": "When it was stored.",
            "letter": "The message, its attempts and the traceback.",
            "failure": "Key of its failure group.",
            "identity": "Key of the message, if it could be read.",
        },
    ),
    "entities": Rows(
        "The state of an entity.",
        "Always.",
        {"key": "Type and key of the entity.", "state": "The state as JSON.", "changed_at": "When it changed last."},
    ),
    "register": Rows(
        "A reservation: artifacts that an attempt may have created.",
        "Until the attempt has ended and is cleaned up.",
        {
            "attempt": "Id of the attempt.",
            "key": "Key of the message.",
            "endpoint": "Endpoint of the attempt.",
            "source": "Source of the message.",
            "id": "Id of the message.",
            "unit": "Unit of the attempt, such as an entity.",
            "opened_at": "When it was written.",
            "cancelled": "Whether the attempt is cancelled: its artifacts are deleted, and it cannot commit.",
        },
    ),
    "tokens": Rows(
        "A live token.", "Until its message is handled.", {"key": "Hash of the receiving endpoint and the token's id."}
    ),
    "keys": Rows(
        "An idempotency key of a client, with its answer.",
        "For the retention.",
        {
            "key": "Key of the endpoint, the scope and the client's key.",
            "fingerprint": "Hash of the request.",
            "attempt": "Id of the attempt that committed it.",
            "answer": "The response.",
            "stored_at": "When it was committed.",
        },
    ),
    "janitor": Rows(
        "The log of an endpoint's janitor.",
        "Always.",
        {"endpoint": "Name of the endpoint.", "journal": "Its last runs as JSON, for `onceonly status`."},
    ),
    "starts": Rows(
        "A handler that runs alone, because its message was held by a process that died.",
        "Until the handler ends, at most 7 days.",
        {
            "key": "Key of the message.",
            "attempts": "Number of the attempt.",
            "token": "Random bytes of this run.",
            "until": "When a run that has not ended counts as dead.",
        },
    ),
    "unsubscribed": Rows(
        "A count of events that had no subscriber.",
        "Always.",
        {"endpoint": "Endpoint that published them.", "type": "Message type.", "count": "Number of events."},
    ),
    "processes": Rows(
        "A process of an endpoint. It writes every 10 seconds, unless `presence=False`.",
        "Until another process deletes it, some time after it stopped reporting.",
        {
            "endpoint": "Name of the endpoint.",
            "process": "Name of the process.",
            "host": "Name of its machine.",
            "pid": "Process id on that machine.",
            "version": "Version of onceonly.",
            "seen": "When it reported last.",
            "counters": "What it has handled, as JSON.",
            "troubles": "What does not work, as JSON.",
            "types": "Types of messages that it handles, as JSON.",
        },
    ),
    "actions": Rows(
        "An operator's action on dead letters.",
        "Always.",
        {
            "position": "Number of the action.",
            "at": "When it was confirmed.",
            "actor": "Name of the operator.",
            "method": "How the operator was recognized: `cli`, `basic`, `bearer`, `application`, `loopback`.",
            "action": "`retry`, `retry anyway`, `edit and retry`, `send as new`, `delete`, `restore`, `open body`, `export`.",
            "endpoint": "Endpoint of the dead letters. Empty: all.",
            "scope": "Selection of the dead letters, as JSON.",
            "upto": "Greatest position of the selection.",
            "reached": "Position up to which it has run.",
            "reason": "What the operator wrote.",
            "state": "`running`, `done`, `stopped` or `refused`.",
            "total": "Number of selected dead letters.",
            "done": "Number of those done.",
            "kept": "Number of those left as they were.",
            "runner": "Process that runs the action.",
            "lease": "Until when only this process may run it.",
        },
    ),
    "action_items": Rows(
        "What an action did with one dead letter.",
        "Always. The copy of a deleted or edited one for 7 days.",
        {
            "action": "Number of the action.",
            "number": "Number within the action.",
            "letter": "Name of the dead letter.",
            "identity": "Key of the message.",
            "outcome": "`planned`, `waiting`, `handled`, `failed again`, `kept`, `unknown`, `deleted` or `restored`.",
            "detail": "More about that.",
            "before": "Hash of the body before an edit.",
            "after": "Hash of the body after it.",
            "stored": "Copy that can be restored.",
            "stored_until": "Until when it can be restored.",
            "at": "When it was done.",
        },
    ),
    "messages": Rows(
        "A message in a queue.",
        "Until it is acknowledged.",
        {
            "seq": "Number in the order of sending.",
            "queue": "Endpoint that receives it.",
            "visible_at": "When it can be received: its due time, or the end of its lease.",
            "leases": "How often it was received since its last release.",
            "receipt": "Who received it last.",
            "headers": "Its headers as JSON.",
            "body": "Its body.",
        },
    ),
    "queues": Rows("A queue.", "Always.", {"name": "Name of the endpoint."}),
    "subscriptions": Rows(
        "A subscription.",
        "Until `onceonly topology unsubscribe`.",
        {"event": "Message type.", "queue": "Endpoint that subscribes to it."},
    ),
    "documents": Rows(
        "A document.",
        "Until it expires.",
        {
            "key": "Key of the document.",
            "version": "Changes with each write.",
            "expires": "When it may be deleted. 0: never.",
            "body": "Its content.",
        },
    ),
    "requests": Rows(
        "An HTTP request to this service with its response, or the tombstone of a request that was deleted.",
        "Until the client deletes it. A tombstone until `until`.",
        {
            "key": "Hash of the endpoint and the request's key.",
            "endpoint": "Endpoint that responds.",
            "until": "When a tombstone may be deleted, by the clock of the process.",
            "request": "The request.",
            "attempt": "Id of the attempt that committed the response.",
            "answer": "The response.",
        },
    ),
    "journal_N": Rows(
        "An event of a message. The tables are filled one after another.",
        "Until its table is emptied as a whole, after `keep` or `rows`.",
        {
            "position": "Number in the order of storing.",
            "conversation": "Hash of the conversation's id.",
            "at": "When it happened.",
            "identity": "Hash of the message's source and id.",
            "parent": "The same of the message that caused it.",
            "endpoint": "Endpoint at which it happened.",
            "type": "Message type.",
            "outcome": "`handled`, `sent`, `duplicate`, `redispatched`, `retried`, `dead_letter`, `refused_old` or `relayed`.",
            "source": "Source of the message.",
            "id": "Id of the message.",
            "process": "Host and process id.",
            "attempt": "Number of the attempt.",
            "duration": "Duration of the handler in microseconds.",
            "error": "Class of the error.",
            "letter": "Name of the dead letter.",
        },
    ),
    "journal_settings": Rows(
        "A setting of an endpoint. The longest of all holds.",
        "Until no process reports it.",
        {
            "endpoint": "Name of the endpoint.",
            "keep": "Its `keep` in milliseconds.",
            "seen": "When a process reported it last.",
        },
    ),
    "schema": Rows(
        "The version of a component. A process checks it at start.",
        "Always.",
        {"component": "Name of the component.", "version": "Version of its tables."},
    ),
}


def page() -> str:
    """Return the whole page."""
    rows = (f"| {SCHEMAS[use].component} | {SCHEMAS[use].version} | {words} |\n" for use, words in COMPONENTS.items())
    parts = [HEAD, *rows]
    for title, tables in components():
        sections = {short(each): each for each in tables}
        parts += [f"\n## {title}\n", *(_section(name, table) for name, table in sections.items())]
    return "".join(parts)


def components() -> Iterator[tuple[str, list[Table]]]:
    """Return the tables of each component, and at the end the one that all share."""
    for use in COMPONENTS:
        schema = SCHEMAS[use]
        yield f"Component {schema.component}", list(schema.tables(PREFIX, None).tables.values())
    yield "All components", [versions_table(TableNames(PREFIX, None))]


def short(table: Table) -> str:
    """Return the name of a table without the prefix. Tables in turn have one name."""
    name = table.name.removeprefix(PREFIX)
    return re.sub(r"_\d$", "_N", re.sub(r"_\d\d$", "_NN", name))


def _section(name: str, table: Table) -> str:
    described = TABLES[name]
    rows = (f"| `{each.name}` | {_type(each)} | {described.columns[each.name]} |\n" for each in table.columns)
    return (
        f"\n### {PREFIX}{name}\n\n* *A row is*: {_lower(described.one)}\n* *It stays*: {_lower(described.stay)}\n"
        f"\n| column | type | content |\n|---|---|---|\n{''.join(rows)}"
    )


def _type(column: Column[Any]) -> str:
    kind = column.type.compile(postgresql.dialect())
    return f"{kind}, key" if column.primary_key else f"{kind}, nullable" if column.nullable else kind


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
