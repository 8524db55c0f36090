"""Serves the stand-in over HTTPS, as a process of its own.

    python -m tests.servers.cosmosdb.standin PORT CERTIFICATE KEY CONSISTENCY

Beside the interface of Cosmos DB it has one for tests, below `/_test/`: see `harness`.
"""

import asyncio
import json
import ssl
import sys
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from aiohttp import web

from tests.servers.cosmosdb.containers import (
    BAD,
    CONFLICT,
    CREATED,
    GONE,
    MOST_BYTES,
    OK,
    RANGES,
    TOO_LARGE,
    Account,
    Container,
    Item,
    Refused,
    decoded,
)
from tests.servers.cosmosdb.queries import plan, run

MULTI, NOT_MODIFIED, UNAUTHORIZED, THROTTLED = 207, 304, 401, 429
_ETAG = '"1"'


class Fault:
    """What is done to one request.

    `kind` is batch, write (also a batch), read, query or any of these, and `skip` of these requests pass before it. `action`
    is hold, cut or a status; `when` is before or after it was applied.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.kind: str = given["kind"]
        self.skip: int = given.get("skip", 0)
        self.action, self.when, self.more = given["action"], given.get("when", "before"), given.get("headers", {})
        self.held, self.released = asyncio.Event(), asyncio.Event()

    def hits(self, kind: str) -> bool:
        """Return whether this is the request."""
        if kind == "other" or (self.kind not in {kind, "any"} and not (self.kind == "write" and kind == "batch")):
            return False
        self.skip -= 1
        return self.skip == -1


class StandIn:
    """The account behind HTTP."""

    def __init__(self, consistency: str) -> None:
        self.time = time.time()  # passes only when a test says so: what expires within a second would expire at chance
        self.account = Account(lambda: self.time, consistency)
        self.faults: list[Fault] = []
        self.throttled, self.retry_after, self.quiet_until, self.early = 0, 0, 0.0, 0
        self.log: list[str] = []
        self.tokens = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path.startswith("/_test/"):
            return await self._test(request)
        body = await request.read()
        kind = _kind(request)
        if kind in {"batch", "write", "read", "query"}:
            self.log.append(kind)
            if time.monotonic() < self.quiet_until:
                self.early += 1
            if self.throttled:
                self.throttled -= 1
                self.quiet_until = time.monotonic() + self.retry_after / 1000
                more = {"x-ms-retry-after-ms": str(self.retry_after)}
                return self._refusal(Refused(THROTTLED, "Request rate is large", 3200), more)
        fault = next((each for each in self.faults if each.hits(kind)), None)
        if fault is not None and fault.when == "before" and (refusal := await self._do(fault, request)) is not None:
            return refusal
        try:
            answer = self._route(request, body)
        except Refused as refused:
            answer = self._refusal(refused)
        if fault is not None and fault.when == "after":
            return await self._do(fault, request) or answer
        return answer

    async def _do(self, fault: Fault, request: web.Request) -> web.Response | None:
        if fault.action == "hold":
            fault.held.set()
            await fault.released.wait()
            return None
        if fault.action == "cut":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return self._refusal(Refused(int(fault.action), "as a test asked"), fault.more)

    def _route(self, request: web.Request, body: bytes) -> web.Response:
        if "authorization" not in request.headers:
            raise Refused(UNAUTHORIZED, "Required Header authorization is missing.")
        match [request.method, *(part for part in request.path.split("/") if part)]:
            case ["GET"]:
                return self._json(self._about(request))
            case [method, "dbs", *names] if len(names) <= 1:
                return self._database(method, names, body)
            case ["POST", "dbs", database, "colls"]:
                return self._json(self.account.create(database, decoded(body)).definition, CREATED)
            case [method, "dbs", database, "colls", name, *rest]:
                return self._in_container(request, self.account.container(database, name), [method, *rest], body)
        raise Refused(BAD, f"this stand-in does not know {request.method} {request.path}")

    def _database(self, method: str, names: list[str], body: bytes) -> web.Response:
        name = names[0] if names else decoded(body)["id"]
        if method == "POST" and name in self.account.databases:
            raise Refused(CONFLICT, "the database already exists")
        if method == "POST":
            self.account.databases[name] = {}
        self.account.containers(name)
        return self._json({"id": name, "_rid": name, "_self": f"dbs/{name}/"}, CREATED if method == "POST" else OK)

    def _in_container(self, request: web.Request, container: Container, asked: list[str], body: bytes) -> web.Response:
        match asked:
            case ["GET"]:
                return self._json(container.definition)
            case ["GET", "pkranges"]:
                return self._ranges(request)
            case ["POST", "docs"]:
                return self._post(request, container, body)
            case ["GET" | "PUT" | "DELETE", "docs", item]:
                return self._item(request, container, item, body)
        raise Refused(BAD, f"this stand-in does not know {request.method} {request.path}")

    def _post(self, request: web.Request, container: Container, body: bytes) -> web.Response:
        headers = request.headers
        if _is_set(request, "x-ms-cosmos-is-query-plan-request"):
            return self._json(plan(decoded(body)))
        if _is_set(request, "x-ms-documentdb-isquery"):
            found = run(container, decoded(body), headers)
            more = {"x-ms-continuation": found.continuation} if found.continuation else {}
            content = {"_rid": container.definition["_rid"], "Documents": found.items, "_count": len(found.items)}
            return self._json(content, more=more, container=container)
        if len(body) > MOST_BYTES:
            raise Refused(TOO_LARGE, "Request size is too large")
        if _is_set(request, "x-ms-cosmos-is-batch-request"):
            if not _is_set(request, "x-ms-cosmos-batch-atomic"):
                raise Refused(BAD, "this stand-in has no batches that are not atomic")
            results = container.batch(_partition(request), decoded(body))
            answers = [_in_batch(*each, is_minimal=_is_minimal(request)) for each in results]
            is_refused = any(each.status >= BAD for each in results)
            return self._json(answers, MULTI if is_refused else OK, container=container)
        kind = "Upsert" if _is_set(request, "x-ms-documentdb-is-upsert") else "Create"
        result = container.run(_partition(request), {"operationType": kind, "resourceBody": decoded(body)})
        return self._written(request, container, result.status, result.item)

    def _item(self, request: web.Request, container: Container, name: str, body: bytes) -> web.Response:
        kind = {"GET": "Read", "PUT": "Replace", "DELETE": "Delete"}[request.method]
        if len(body) > MOST_BYTES:
            raise Refused(TOO_LARGE, "Request size is too large")
        operation = {"operationType": kind, "id": name, "ifMatch": request.headers.get("If-Match")}
        if kind == "Replace":
            operation["resourceBody"] = decoded(body)
        result = container.run(_partition(request), operation)
        return self._written(request, container, result.status, result.item)

    def _written(self, request: web.Request, container: Container, status: int, item: Any) -> web.Response:
        is_silent = item is None or (request.method != "GET" and _is_minimal(request))
        more = {"etag": item["_etag"]} if item is not None else {}
        if status == GONE or is_silent:
            return web.Response(status=status, headers={**self._headers(container), **more})
        return self._json(item, status, more=more, container=container)

    def _ranges(self, request: web.Request) -> web.Response:
        if request.headers.get("If-None-Match") == _ETAG:
            return web.Response(status=NOT_MODIFIED, headers={"etag": _ETAG})
        ranges = [
            {"id": name, "_rid": name, "minInclusive": low, "maxExclusive": high, "parents": [], "status": "online"}
            for name, low, high in RANGES
        ]
        return self._json({"_rid": "r", "PartitionKeyRanges": ranges, "_count": len(ranges)}, more={"etag": _ETAG})

    def _about(self, request: web.Request) -> dict[str, Any]:
        location = [{"name": "Here", "databaseAccountEndpoint": f"https://{request.host}/"}]
        return {
            "id": "standin",
            "_rid": "standin",
            "_dbs": "//dbs/",
            "writableLocations": location,
            "readableLocations": location,
            "enableMultipleWriteLocations": False,
            "userConsistencyPolicy": {"defaultConsistencyLevel": self.account.consistency},
        }

    def _headers(self, container: Container | None) -> dict[str, str]:
        found = {"x-ms-activity-id": str(uuid4()), "x-ms-request-charge": "1"}
        return found if container is None else found | {"x-ms-session-token": f"0:-1#{container.lsn}"}

    def _json(
        self, content: Any, status: int = OK, *, more: dict[str, str] | None = None, container: Container | None = None
    ) -> web.Response:
        return web.json_response(content, status=status, headers={**self._headers(container), **(more or {})})

    def _refusal(self, refused: Refused, more: dict[str, str] | None = None) -> web.Response:
        headers = {"x-ms-substatus": str(refused.substatus)} if refused.substatus else {}
        return self._json(
            {"code": str(refused.status), "message": refused.message}, refused.status, more=headers | (more or {})
        )

    async def _test(self, request: web.Request) -> web.Response:
        given = await request.json() if request.can_read_body else {}
        match request.path.removeprefix("/_test/"):
            case "fault":
                self.faults.append(Fault(given))
            case "held":
                await self.faults[-1].held.wait()
            case "release":
                for fault in self.faults:
                    fault.released.set()
                self.faults.clear()
            case "throttle":
                self.throttled, self.retry_after, self.early = given["count"], given["milliseconds"], 0
            case "pass":
                self.time += given["seconds"]
            case "log":
                log, self.log = self.log, []
                return web.json_response({"log": log, "early": self.early})
            case name:
                return web.json_response(self._test_container(name, given))
        return web.json_response({})

    def _test_container(self, name: str, given: dict[str, Any]) -> list[Item]:
        if name == "create":
            self.account.databases.setdefault(given["database"], {})
            self.account.create(given["database"], given["container"])
            return []
        container = self.account.container(given["database"], given["container"])
        if name == "put":
            key = json.dumps(given["partition"] if isinstance(given["partition"], list) else [given["partition"]])
            container.run(key, {"operationType": "Upsert", "resourceBody": given["item"]})
        return [item for _, item in container.every()]


def _kind(request: web.Request) -> str:
    if "/docs" not in request.path:
        return "other"
    if _is_set(request, "x-ms-cosmos-is-batch-request"):
        return "batch"
    if _is_set(request, "x-ms-documentdb-isquery") or _is_set(request, "x-ms-cosmos-is-query-plan-request"):
        return "query"
    return "read" if request.method == "GET" else "write"


def _partition(request: web.Request) -> str:
    given = request.headers.get("x-ms-documentdb-partitionkey")
    if given is None:
        raise Refused(BAD, "PartitionKey value must be supplied for this operation.")
    return json.dumps(decoded(given.encode()))


def _in_batch(status: int, item: Any, *, is_minimal: bool) -> dict[str, Any]:
    answer = {"statusCode": status, "requestCharge": 1}
    if item is not None:
        answer |= {"eTag": item["_etag"]} | ({} if is_minimal else {"resourceBody": item})
    return answer


def _is_minimal(request: web.Request) -> bool:
    return request.headers.get("Prefer") == "return=minimal"


def _is_set(request: web.Request, header: str) -> bool:
    return request.headers.get(header, "").lower() == "true"


async def _serve(port: int, certificate: str, key: str, consistency: str) -> None:
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate, key)
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", StandIn(consistency).answer)
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=3600, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=secured).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1]), *sys.argv[2:5]))
