"""What MySQL does differently from MariaDB. The server decides, not the URL: both schemes lead to both servers.

Where the difference is a clause, one text is right on both: MariaDB alone executes `/*M!100300 ... */`, and MySQL alone
`/*!80000 ... */`, because MariaDB ignores the versions of MySQL from 5.7 on.

MySQL has no time-out for transactions. `wait_timeout` ends every silent session, also one that waits in the pool, so the pool
replaces a connection before it is as old as that.
"""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.sql.database_history import DatabaseHistory

IDLE = "onceonly_idle"
"""The seconds after which the server ends a silent session, in `Connection.info`; absent before the first transaction."""
MARGIN_SECONDS = 2.0
"""A pooled connection is replaced these seconds before the server ends its session, or at half of a shorter time."""
_SINCE = "onceonly_idle_since"


def is_mysql(connection: Any) -> bool:
    """Return whether an initialized connection or engine leads to MySQL."""
    return not connection.dialect.is_mariadb


def limit_idle(seconds: int) -> str:
    """Return the assignments that make a server end a transaction, or on MySQL a session, that is silent for longer.

    They are for SET, and the last one is a variable of the session that tests read.
    """
    mariadb, mysql = f"SESSION idle_transaction_timeout = {seconds}", f"SESSION wait_timeout = {seconds}"
    return f"/*M!100300 {mariadb}, */ /*!80000 {mysql}, */ @{IDLE} = {seconds}"


def replace_idle_connections(engine: AsyncEngine) -> None:
    """Make the pool of an engine of this library's own replace a connection that its server may have ended."""

    def returned(_connection: object, record: Any) -> None:
        record.info[_SINCE] = time.monotonic()

    def taken(_connection: object, record: Any, _proxy: object) -> None:
        limit, since = record.info.get(IDLE), record.info.get(_SINCE)
        if limit is None or since is None or not is_mysql(engine):
            return
        if time.monotonic() - since > limit - min(MARGIN_SECONDS, limit / 2):
            raise DisconnectionError("the server ends this session soon, or has ended it")

    event.listen(engine.sync_engine, "checkin", returned)
    event.listen(engine.sync_engine, "checkout", taken)


def read_history(found: Mapping[str, str]) -> DatabaseHistory | None:
    """Read how far a server with GTIDs has come, from its variables: sets such as `uuid:1-7:9, uuid:tag:1-2`."""
    if found.get("gtid_mode") != "ON" or found.get("log_bin") != "ON":
        return None
    positions: dict[str, int] = {}
    for each in filter(None, (part.strip() for part in found["gtid_executed"].split(","))):
        stream, *parts = each.split(":")
        source = stream
        for part in parts:
            if part[0].isdigit():
                positions[stream] = max(positions.get(stream, 0), int(part.rpartition("-")[2]))
            else:  # a tag: the intervals behind it are a stream of their own
                stream = f"{source}:{part}"
    return DatabaseHistory(f"server {found['server_uuid']}", positions, found["gtid_executed"].replace("\n", ""))
