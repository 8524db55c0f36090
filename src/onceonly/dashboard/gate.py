"""The checks of every request before a page sees it: host, origin and token of forms; and the headers of every response."""

import hmac
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from onceonly.model.errors import SetupError
from onceonly.operations.editing import FILE_LIMIT

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; trusted-types onceonly; require-trusted-types-for 'script'"
)
DOWNLOAD_POLICY = "sandbox; default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

MOST_FORM_BYTES = 4 << 20
MOST_UPLOAD_BYTES = FILE_LIMIT + (64 << 10)
"""Bytes of a form with a file."""
MOST_FIELDS = 50
MOST_QUERY_BYTES = 8192
TOKEN_SECONDS = 8 * 3600
TOKEN = "token"  # noqa: S105 - the name of a field
_SHORTEST_SECRET = 16
_HEXADECIMAL = re.compile("[0-9a-f]{1,16}")
_TYPE = "application/x-www-form-urlencoded"
_UPLOAD_TYPE = "multipart/form-data"


class Refused(Exception):
    """A request that is not served, with its status and the reason for people.

    `is_stored` if the action that it asks for has a row already, with the same reason.
    """

    def __init__(
        self, status: HTTPStatus, reason: str, *, headers: Mapping[str, str] | None = None, is_stored: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})
        self.is_stored = is_stored


def protect(response: Response, *, policy: str | None = None) -> Response:
    """Set the headers that each response has. `policy` replaces the content security policy, for downloads."""
    for name, value in HEADERS.items():
        response.headers[name] = value
    if policy is not None:
        response.headers["content-security-policy"] = policy
    return response


def check_hosts(hosts: Sequence[str] | str | None) -> frozenset[str]:
    """Check `hosts=`. Raises SetupError."""
    given = LOCAL_HOSTS if hosts is None else (hosts,) if isinstance(hosts, str) else tuple(hosts)
    for each in given:
        if not each or host_of(each) != each.lower() or each == "*":
            raise SetupError(
                f"hosts: {each!r} is not a host name: write names without scheme and port, such as ops.example.com"
            )
    if not given:
        raise SetupError("hosts is empty: name the hosts that browsers use for the dashboard")
    return frozenset(each.lower() for each in given)


def host_of(header: str) -> str:
    """Return the host of a `Host` header, in lower case and without the port; empty if it is not one."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return ""
    if parts.netloc != header or parts.username is not None or not parts.hostname:
        return ""
    return f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname


def check_host(headers: Headers, hosts: frozenset[str]) -> None:
    """Refuse a host that is not listed (DNS rebinding). Raises Refused."""
    given = headers.getlist("host")
    if len(given) != 1 or host_of(given[0]) not in hosts:
        raise Refused(
            HTTPStatus.MISDIRECTED_REQUEST,
            "This host name is not one of the dashboard. Add it to hosts= (--host on the command line).",
        )


def check_origin(headers: Headers) -> None:
    """Refuse a form of another origin: by `Sec-Fetch-Site`, or by `Origin` where a browser does not send it. Raises Refused."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        own = site == "same-origin"
    else:
        own = origin is not None and urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    if not own:
        raise Refused(HTTPStatus.FORBIDDEN, "This form was not sent by a page of the dashboard.")


async def read_form(headers: Headers, receive: Any) -> dict[str, list[str]]:
    """Read a form: at most 4 MiB and 50 fields, UTF-8. Raises Refused."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Send the form as {_TYPE}.")
    return _fields(await _content(receive, MOST_FORM_BYTES), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


class Upload(NamedTuple):
    """The fields and the files of a form, by their names. The names of files are ignored."""

    fields: dict[str, list[str]]
    files: dict[str, bytes]


async def read_upload(headers: Headers, receive: Any) -> Upload:
    """Read a form with files: at most 16 MiB and 50 parts, as RFC 7578 defines it. Raises Refused."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _UPLOAD_TYPE:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Send the form as {_UPLOAD_TYPE}.")
    limits: dict[str, Any] = {"max_files": MOST_FIELDS, "max_fields": MOST_FIELDS, "max_part_size": MOST_FORM_BYTES}
    try:
        form = await MultiPartParser(headers, _parts(receive, MOST_UPLOAD_BYTES), **limits).parse()
    except MultiPartException as error:
        raise Refused(HTTPStatus.BAD_REQUEST, error.message) from error
    found = Upload({}, {})
    for name, value in form.multi_items():
        if isinstance(value, str):
            found.fields.setdefault(name, []).append(value)
        elif value.filename:  # without a name, no file was chosen
            found.files[name] = await value.read()
    await form.close()
    if not found.fields and not found.files:
        raise Refused(HTTPStatus.BAD_REQUEST, "The form has no fields.")
    return found


async def _content(receive: Any, most: int) -> bytes:
    """Read the body of a request. Raises Refused."""
    return b"".join([part async for part in _parts(receive, most)])


async def _parts(receive: Any, most: int) -> AsyncGenerator[bytes, None]:
    """Read the body of a request part by part. Raises Refused."""
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(HTTPStatus.BAD_REQUEST, "The form ended early.")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The form is larger than {most >> 20} MiB.")
        yield part
        if not message.get("more_body"):
            return


def read_query(raw: bytes) -> dict[str, list[str]]:
    """Read a query string: at most 8 kB and 50 fields. Raises Refused."""
    if len(raw) > MOST_QUERY_BYTES:
        raise Refused(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is longer than 8 kB.")
    return _fields(raw, HTTPStatus.BAD_REQUEST)


def _fields(raw: bytes, status: HTTPStatus) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except UnicodeDecodeError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "The fields are not UTF-8.") from error
    except ValueError as error:
        raise Refused(status, f"There are more than {MOST_FIELDS} fields.") from error
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


class FormTokens:
    """Tokens of forms. A token is valid for 8 hours, for one user and one action.

    Processes that share a `secret` accept each other's tokens. Without one it is random.
    """

    def __init__(self, secret: str | bytes | None) -> None:
        if secret is not None and len(secret) < _SHORTEST_SECRET:
            raise SetupError(f"secret is shorter than {_SHORTEST_SECRET} characters: use a random one, equal in each process")
        given = secrets.token_bytes(32) if secret is None else os.fsencode(secret) if isinstance(secret, str) else secret
        self._key = hmac.digest(given, b"onceonly dashboard forms", "sha256")

    def issue(self, user: str, action: str, *, now: float | None = None) -> str:
        """Return a token for an action: the path of its form."""
        until = int((time.time() if now is None else now) + TOKEN_SECONDS)
        return f"{until:x}.{self._mac(user, action, until)}"

    def check(self, token: str, user: str, action: str, *, now: float | None = None) -> None:
        """Refuse a token that is not valid. Raises Refused."""
        digits, _, mac = token.partition(".")
        until = int(digits, 16) if _HEXADECIMAL.fullmatch(digits) else 0
        if not hmac.compare_digest(mac.encode(), self._mac(user, action, until).encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "The form's token is not valid. Open the page again, and send the form again.")
        if until < (time.time() if now is None else now):
            raise Refused(HTTPStatus.FORBIDDEN, "The form is older than 8 hours. Open the page again.")

    def _mac(self, user: str, action: str, until: int) -> str:
        return hmac.digest(self._key, "\0".join((user, action, str(until))).encode(), "sha256").hex()
