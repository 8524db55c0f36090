"""What the description of an API says about requests that are done once: the key, and the problems."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, Header
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from onceonly import Endpoint
from onceonly.integrations.fastapi import IdempotentRoute
from onceonly.integrations.idempotency_keys import KEY_HEADER, KEY_PATTERN, MalformedKey, read_key
from onceonly.integrations.problems import MEDIA_TYPE, STATUSES
from tests import ROOT
from tests.integrations.browser import Shop, started_shop

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate Operation ID mixed")  # FastAPI's own, of a route with two methods


class Found(BaseModel):
    """A body of the user's own."""

    what: str


def description(**terms: Any) -> dict[str, Any]:
    """Describe an application with a route of each kind; gives its paths."""
    shop = Endpoint("shop", store="memory://openapi", transport="memory://openapi")
    inner, outer, app = APIRouter(route_class=IdempotentRoute.of(shop, **terms)), APIRouter(prefix="/api"), FastAPI()

    @inner.post("/plain")
    async def plain(found: Found) -> Found:
        return found

    own: dict[int | str, dict[str, Any]] = {
        409: {"model": Found, "description": "Sold out"},
        422: {"description": "Not an order"},
        404: {},
    }

    @inner.put("/own", responses=own, openapi_extra={"x-mine": 1, "responses": {"503": {"description": "Closed"}}})
    async def with_own(idempotency_key: Annotated[str, Header(alias=KEY_HEADER)]) -> None:
        """Describe what it answers by itself."""

    @inner.get("/safe")
    async def safe() -> None:
        """Change nothing."""

    @inner.api_route("/mixed", methods=["GET", "POST"])
    async def mixed() -> None:
        """Serve safe requests as well."""

    outer.include_router(inner)
    app.include_router(outer)
    paths: dict[str, Any] = app.openapi()["paths"]
    return paths


def key_of(operation: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the header. There is one."""
    (found,) = [each for each in operation["parameters"] if each["name"].lower() == KEY_HEADER.lower()]
    assert isinstance(found, dict)
    return found


def codes(operation: dict[str, Any]) -> dict[str, str]:
    """Return the problems that are described, with their statuses."""
    return {
        code: status
        for status, response in operation["responses"].items()
        if MEDIA_TYPE in response.get("content", {})
        for code in response["content"][MEDIA_TYPE]["schema"]["properties"]["code"]["enum"]
    }


def test_the_key_is_required_where_the_route_requires_it() -> None:
    """With what it has to look like."""
    key = key_of(description()["/api/plain"]["post"])
    assert (key["in"], key["required"], key["schema"]["pattern"]) == ("header", True, KEY_PATTERN)
    assert key_of(description(key_required=False)["/api/plain"]["post"])["required"] is False


def test_a_route_that_serves_safe_requests_as_well_requires_no_key() -> None:
    """Those come without one."""
    mixed = description()["/api/mixed"]
    assert key_of(mixed["get"])["required"] is key_of(mixed["post"])["required"] is False


def test_all_problems_are_described_with_their_codes() -> None:
    """Those of a missing key only where one is required."""
    expected = {code: str(status) for code, status in STATUSES.items()}
    assert codes(description()["/api/plain"]["post"]) == expected
    optional = codes(description(key_required=False)["/api/plain"]["post"])
    assert optional == {code: status for code, status in expected.items() if code != "key-missing"}


def test_the_response_to_an_invalid_body_stays_described() -> None:
    """A 422 is FastAPI's or a problem."""
    assert set(description()["/api/plain"]["post"]["responses"]["422"]["content"]) == {"application/json", MEDIA_TYPE}


def test_what_the_route_describes_itself_stays() -> None:
    """Descriptions, bodies and extensions; the header is described once."""
    operation = description()["/api/own"]["put"]
    described = {status: response["description"] for status, response in operation["responses"].items()}
    assert (described["409"], described["422"], described["503"]) == ("Sold out", "Not an order", "Closed")
    assert set(operation["responses"]["409"]["content"]) == {"application/json", MEDIA_TYPE}
    assert operation["x-mine"] == 1
    assert key_of(operation)["required"]


def test_a_safe_operation_describes_no_problems() -> None:
    """It has no transaction."""
    assert set(description()["/api/safe"]["get"]["responses"]) == {"200"}


@given(st.one_of(st.from_regex(KEY_PATTERN, fullmatch=True), st.text()))
def test_the_pattern_describes_exactly_the_values_that_are_keys(value: str) -> None:
    """Apart from blanks around them, which HTTP removes, and from their length."""
    try:
        is_key = bool(read_key([value]))
    except MalformedKey:
        is_key = False
    assert (re.fullmatch(KEY_PATTERN, value) is not None) == (is_key and value == value.strip(" "))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """Start the example in an empty folder."""
    async with started_shop(tmp_path) as shop:
        yield shop


FRESH = f"""
import schemathesis
from uuid import uuid4

@schemathesis.hook
def before_call(context, case, kwargs):
    if "{KEY_HEADER}" in (case.headers or {{}}) and case.meta.generation.mode.value == "positive":
        case.headers["{KEY_HEADER}"] = f'"{{uuid4()}}"'
"""
"""Requests that must be taken have a new key each: generated ones repeat."""
REUSED = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "422"]
"""
"""With one key for all requests, all but the first reuse it."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fixed", [False, True], ids=["a new key for each request", "one key for all requests"])
async def test_schemathesis_finds_nothing_in_the_shop(shop: Shop, tmp_path: Path, fixed: bool) -> None:  # noqa: FBT001 - a parameter
    """Requests that fit the description, and ones that do not, get answers that it has.

    One check is about FastAPI alone: it answers 405 with the methods of the first route of a path, not of all.
    """
    folder = tmp_path / "schemathesis"
    folder.mkdir()
    (folder / "schemathesis.toml").write_text(REUSED if fixed else "")
    (folder / "fresh_keys.py").write_text(FRESH)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{shop.url}/openapi.json", "--no-color"]
    command += ["--seed", "1", "--generation-database", "none", "--max-examples", "40", "--continue-on-failure"]
    command += ["--exclude-checks", "allow_header_conformance"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    if fixed:
        command += ["--header", f'{KEY_HEADER}: "k-1"']
    else:
        environment["SCHEMATHESIS_HOOKS"] = "fresh_keys"
    ended = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=PIPE, stderr=STDOUT)
    output = (await ended.communicate())[0].decode()
    assert (ended.returncode, "No issues found" in output) == (0, True), output
