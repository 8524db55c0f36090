"""The queries that the adapter sends, and no others: each is known by its text. Anything else is refused with status 400."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.servers.cosmosdb.containers import BAD, RANGES, Container, Item, Refused, value_at

PAGE = 20
"""Items of one answer, so that lists take several."""
NOT_SERVABLE = 1004
"""The substatus of a query over several partitions: the client has to merge their answers, by the query's plan."""
Parameters = Mapping[str, Any]


class Shape(NamedTuple):
    """What a query selects: which items, in the order of which property, and what of them."""

    order: str
    accepts: Callable[[Item, Parameters], bool]
    select: Callable[[Item], Any]
    select_text: str


def _begins(path: str) -> Callable[[Item, Parameters], bool]:
    def accepts(item: Item, given: Parameters) -> bool:
        name = value_at(item, path)
        return isinstance(name, str) and name.startswith(given["@prefix"]) and name > given["@after"]

    return accepts


def _pending(root: str) -> Callable[[Item, Parameters], bool]:
    def accepts(item: Item, given: Parameters) -> bool:
        order, endpoints = value_at(item, f"{root}/pending_at"), value_at(item, f"{root}/pending_for")
        return isinstance(order, str) and given["@after"] < order < given["@before"] and given["@endpoint"] in (endpoints or ())

    return accepts


SHAPES: Mapping[str, Shape] = {
    "SELECT TOP # VALUE c.id FROM c WHERE STARTSWITH(c.id, @prefix) AND c.id > @after ORDER BY c.id": Shape(
        "/id", _begins("/id"), lambda item: item["id"], "c.id"
    ),
    "SELECT TOP # c.id AS name, c.pending_at FROM c WHERE c.pending_at > @after AND c.pending_at < @before "
    "AND ARRAY_CONTAINS(c.pending_for, @endpoint) ORDER BY c.pending_at": Shape(
        "/pending_at",
        _pending(""),
        lambda item: {"name": item["id"], "pending_at": item["pending_at"]},
        '{"name": c.id, "pending_at": c.pending_at}',
    ),
    "SELECT TOP # VALUE c.onceonly.name FROM c WHERE STARTSWITH(c.onceonly.name, @prefix) AND c.onceonly.name > @after "
    "ORDER BY c.onceonly.name": Shape(
        "/onceonly/name", _begins("/onceonly/name"), lambda item: item["onceonly"]["name"], "c.onceonly.name"
    ),
    "SELECT TOP # c.onceonly.name AS name, c.onceonly.pending_at AS pending_at FROM c WHERE c.onceonly.pending_at > @after "
    "AND c.onceonly.pending_at < @before AND ARRAY_CONTAINS(c.onceonly.pending_for, @endpoint) "
    "ORDER BY c.onceonly.pending_at": Shape(
        "/onceonly/pending_at",
        _pending("/onceonly"),
        lambda item: {"name": item["onceonly"]["name"], "pending_at": item["onceonly"]["pending_at"]},
        '{"name": c.onceonly.name, "pending_at": c.onceonly.pending_at}',
    ),
}
OTHERS = "SELECT * FROM c WHERE NOT IS_DEFINED(c.onceonly)"
"""An application's query of its own documents, in one partition."""


class Page(NamedTuple):
    """What is answered, and where it goes on; "" at the end."""

    items: list[Any]
    continuation: str


def plan(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a query: how a client merges the answers of several partitions."""
    shape, top, _ = _shape(body["query"])
    middle = body["query"].partition(" FROM c ")[2].partition(" ORDER BY ")[0]
    path = shape.order.replace("/", ".")
    selected = f'TOP {top} c._rid, [{{"item": c{path}}}] AS orderByItems, {shape.select_text} AS payload'
    info = {
        "distinctType": "None",
        "top": top,
        "orderBy": ["Ascending"],
        "orderByExpressions": [f"c{path}"],
        "aggregates": [],
        "rewrittenQuery": " ".join(("SELECT", selected, "FROM c", middle, "ORDER BY", f"c{path}")),
        "hasSelectValue": "VALUE" in body["query"],
    }
    return {
        "partitionedQueryExecutionInfoVersion": 2,
        "queryInfo": info,
        "queryRanges": [{"min": "", "max": "FF", "isMinInclusive": True, "isMaxInclusive": False}],
    }


def run(container: Container, body: Mapping[str, Any], headers: Mapping[str, str]) -> Page:
    """Return a page of what a query finds, in one physical partition or in one partition."""
    query = body["query"]
    partition = headers.get("x-ms-documentdb-partitionkey")
    if query == OTHERS and partition:
        return Page(
            [item for item in container.partition(json.dumps(json.loads(partition))).values() if "onceonly" not in item], ""
        )
    shape, top, is_rewritten = _shape(query)
    number = headers.get("x-ms-documentdb-partitionkeyrangeid")
    if number is None:
        raise Refused(BAD, "The provided cross partition query can not be directly served by the gateway.", NOT_SERVABLE)
    if not is_rewritten:
        raise Refused(BAD, "the query of a physical partition has no order by items")
    ((_, low, high),) = (each for each in RANGES if each[0] == number)
    given = {each["name"]: each["value"] for each in body.get("parameters", ())}
    found = [item for place, item in container.every() if low <= place < high and shape.accepts(item, given)]
    found = sorted(found, key=lambda item: (value_at(item, shape.order), item["_rid"]))[:top]
    behind = tuple(json.loads(headers.get("x-ms-continuation") or '["",""]'))
    rest = [item for item in found if (value_at(item, shape.order), item["_rid"]) > behind]
    page = rest[:PAGE]
    going_on = json.dumps([value_at(page[-1], shape.order), page[-1]["_rid"]]) if len(rest) > PAGE else ""
    return Page([_rewritten(shape, item) for item in page], going_on)


def _rewritten(shape: Shape, item: Item) -> Item:
    return {"_rid": item["_rid"], "orderByItems": [{"item": value_at(item, shape.order)}], "payload": shape.select(item)}


def _shape(query: str) -> tuple[Shape, int, bool]:
    top = re.match(r"SELECT TOP (\d+) ", query)
    if top is None:
        raise Refused(BAD, f"this stand-in does not know the query {query!r}")
    text = query.replace(top[0], "SELECT TOP # ", 1)
    if (shape := SHAPES.get(text)) is not None:
        return shape, int(top[1]), False
    behind = text.partition(" FROM c ")[2]
    for known, shape in SHAPES.items():
        path = shape.order.replace("/", ".")
        head = f'SELECT TOP # c._rid, [{{"item": c{path}}}] AS orderByItems, {shape.select_text} AS payload'
        if text == f"{head} FROM c {behind}" and known.partition(" FROM c ")[2] == behind:
            return shape, int(top[1]), True
    raise Refused(BAD, f"this stand-in does not know the query {query!r}")
