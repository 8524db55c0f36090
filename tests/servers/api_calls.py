"""A log of the requests that the clients of document services send, below the adapters."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from msgspec import json

_COMMANDS = frozenset({"find", "insert", "update", "delete", "aggregate", "count", "getMore"})
"""MongoDB's commands on documents."""


class ApiCall(NamedTuple):
    """A request: what it does, as the service names it, and its arguments."""

    name: str
    arguments: Mapping[str, Any]
    charge: float = 0.0
    """Request units, where the service reports them."""


@contextmanager
def api_calls(system: str) -> Iterator[list[ApiCall]]:
    """Log the requests of all clients of this system in this process. Requests about servers and tables are left out."""
    calls: list[ApiCall] = []
    with pytest.MonkeyPatch.context() as patches:
        LISTENING[system](calls, patches)
        yield calls


def _dynamodb(calls: list[ApiCall], patches: pytest.MonkeyPatch) -> None:
    from aiobotocore.client import AioBaseClient  # type: ignore[import-untyped]  # noqa: PLC0415 - an optional driver

    send = AioBaseClient._make_api_call

    async def sent(self: Any, name: str, arguments: Any) -> Any:
        if not name.endswith("Table"):
            calls.append(ApiCall(name, arguments))
        return await send(self, name, arguments)

    patches.setattr(AioBaseClient, "_make_api_call", sent)


def _cosmos(calls: list[ApiCall], patches: pytest.MonkeyPatch) -> None:
    from azure.core.pipeline.transport import AioHttpTransport  # noqa: PLC0415 - an optional driver

    send: Any = AioHttpTransport.send

    async def sent(self: Any, request: Any, **options: Any) -> Any:
        answer = await send(self, request, **options)
        parts = request.url.split("/", 3)[3].strip("/").split("/")
        if "docs" in parts or "pkranges" in parts:
            is_query = request.headers.get("x-ms-documentdb-isquery", "").lower() == "true"
            is_one = parts[-2] == "docs"
            name = "query" if is_query else request.method if is_one or request.method == "POST" else f"{request.method} of all"
            arguments = json.decode(request.data) if is_query else {"id": parts[-1]}
            calls.append(ApiCall(name, arguments, float(answer.headers.get("x-ms-request-charge", 0))))
        return answer

    patches.setattr(AioHttpTransport, "send", sent)


def _mongodb(calls: list[ApiCall], patches: pytest.MonkeyPatch) -> None:
    """Listen to clients that are made from now on. The driver does not take a listener back."""
    from pymongo import monitoring  # noqa: PLC0415 - an optional driver

    class Listener(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            if event.command_name in _COMMANDS:
                calls.append(ApiCall(event.command_name, event.command))

        def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
            """Log nothing: it was logged when it began."""

        def failed(self, event: monitoring.CommandFailedEvent) -> None:
            """Log nothing."""

    patches.setattr(monitoring, "_LISTENERS", monitoring._LISTENERS._replace(command_listeners=[Listener()]))


def _redis(calls: list[ApiCall], patches: pytest.MonkeyPatch) -> None:
    from redis.asyncio import Redis  # noqa: PLC0415 - an optional driver

    send: Any = Redis.execute_command

    async def sent(self: Any, *arguments: Any, **options: Any) -> Any:
        if arguments[0] not in {"INFO", "CONFIG GET", "PING"}:
            calls.append(ApiCall(arguments[0], {"arguments": arguments[1:]}))
        return await send(self, *arguments, **options)

    patches.setattr(Redis, "execute_command", sent)


def _ravendb(calls: list[ApiCall], patches: pytest.MonkeyPatch) -> None:
    from onceonly.adapters.ravendb.client import RavenDBClient  # noqa: PLC0415 - an optional driver

    send: Any = RavenDBClient._send

    async def sent(self: Any, method: str, path: str, **options: Any) -> Any:
        name = f"{method} {path.rpartition('/')[2]}"
        if name.endswith((" docs", " queries")):
            content = json.decode(options["body"]) if options["body"] else {}
            calls.append(ApiCall(name, {**dict(options["params"]), **content}))
        return await send(self, method, path, **options)

    patches.setattr(RavenDBClient, "_send", sent)


LISTENING: Mapping[str, Callable[[list[ApiCall], pytest.MonkeyPatch], None]] = {
    "dynamodb": _dynamodb,
    "cosmos": _cosmos,
    "mongodb": _mongodb,
    "ravendb": _ravendb,
    "redis": _redis,
}
