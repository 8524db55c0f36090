"""The gate before all pages: host, user, origin, forms and their tokens; and the headers of every response."""

import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.datastructures import Headers, ImmutableMultiDict, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceonly.model.errors import SetupError
from onceonly_dashboard.access import EVERYONE, READING, Authentication, TooManyGuesses, User

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
MOST_FIELDS = 50
MOST_QUERY_BYTES = 8192
TOKEN_SECONDS = 8 * 3600
TOKEN = "token"  # noqa: S105 - the name of a field
NONCES = 10_000
SENT_BEFORE = "This form was sent before. Open the page again to see what happened."
_SHORTEST_SECRET = 16
_HEXADECIMAL = re.compile("[0-9a-f]{1,16}")
_HOST = re.compile(r"[\w.-]+|\[[0-9a-f:.]+\]", re.ASCII | re.IGNORECASE)
_TYPE = "application/x-www-form-urlencoded"


class Refusal(HTTPException):
    """A request that is not served. `detail` is the reason for people.

    `is_stored` if its action has a row already, with the same reason.
    """

    def __init__(
        self, status: HTTPStatus, reason: str, *, headers: Mapping[str, str] | None = None, is_stored: bool = False
    ) -> None:
        super().__init__(status, reason, headers)
        self.is_stored = is_stored


class SecurityHeaders:
    """Sets the headers that each response has, unless a page has set its own, such as the policy of a download."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def protect(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, protect)


def check_hosts(hosts: Sequence[str] | str | None) -> frozenset[str]:
    """Check `hosts=`. Raises SetupError."""
    given = LOCAL_HOSTS if hosts is None else (hosts,) if isinstance(hosts, str) else tuple(hosts)
    for each in given:
        if not _HOST.fullmatch(each):
            raise SetupError(
                f"hosts: {each!r} is not a host name: write names without scheme and port, such as ops.example.com"
            )
    if not given:
        raise SetupError("hosts is empty: name the hosts that browsers use for the dashboard")
    return frozenset(each.lower() for each in given)


class ListedHosts(TrustedHostMiddleware):
    """Refuses a host that is not listed (DNS rebinding) with a page, where Starlette's class answers with a line of text."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        super().__init__(_accept_host, sorted(hosts), www_redirect=False)
        self._served = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, _refuse_host)
        await self._served(scope, receive, send)


async def _accept_host(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Send nothing: the host is listed."""


async def _refuse_host(_message: Message) -> None:
    raise Refusal(
        HTTPStatus.MISDIRECTED_REQUEST,
        "This host name is not one of the dashboard. Add it to hosts= (--host on the command line).",
    )


class AccessSettings(NamedTuple):
    """Users, their roles, and the hosts that are served."""

    auth: Authentication
    roles: Mapping[str, frozenset[str]]
    hosts: frozenset[str]
    read_only: bool

    def roles_of(self, user: User) -> frozenset[str]:
        """Return the roles of a user. A read-only dashboard leaves those for reading."""
        own = user.roles if user.roles is not None else self.roles.get(user.name, self.roles.get(EVERYONE, frozenset()))
        return own & READING if self.read_only else own


class DashboardUser(SimpleUser):
    """A user that this dashboard has authenticated, not one of the application around it."""


class RoleBackend(AuthenticationBackend):
    """Authenticates users for Starlette. Their roles are the scopes of their requests."""

    def __init__(self, access: AccessSettings) -> None:
        self._access = access

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, DashboardUser]:
        auth = self._access.auth
        try:
            user = await auth.identify(conn.scope)
        except TooManyGuesses as error:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                "Credentials were wrong too often. Wait, then try again.",
                headers={"retry-after": str(max(1, round(error.seconds + 0.5)))},
            ) from error
        if user is not None:
            return AuthCredentials(sorted(self._access.roles_of(user))), DashboardUser(user.name)
        if auth.challenge:
            raise Refusal(HTTPStatus.UNAUTHORIZED, "Log in to see this page.", headers={"www-authenticate": auth.challenge})
        raise Refusal(HTTPStatus.FORBIDDEN, "You may not see this page.")


def check_origin(headers: Headers) -> None:
    """Refuse a form of another origin: by `Sec-Fetch-Site`, or by `Origin` where a browser does not send it.

    Raises Refusal.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        own = site == "same-origin"
    else:
        own = origin is not None and urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    if not own:
        raise Refusal(HTTPStatus.FORBIDDEN, "This form was not sent by a page of the dashboard.")


def check_query(request: Request) -> None:
    """Refuse a query of more than 8 kB or 50 fields. Raises Refusal."""
    if len(request.scope["query_string"]) > MOST_QUERY_BYTES:
        raise Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is longer than 8 kB.")
    if len(request.query_params.multi_items()) > MOST_FIELDS:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"There are more than {MOST_FIELDS} fields.")


async def read_form(request: Request) -> ImmutableMultiDict[str, str]:
    """Read a form: at most 4 MiB and 50 fields, UTF-8. Raises Refusal.

    `request.form()` has no limit of the whole form, and replaces bytes that are not UTF-8, which an edited body must not lose.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Send the form as {_TYPE}.")
    content = bytearray()
    try:
        async for part in request.stream():
            content += part
            if len(content) > MOST_FORM_BYTES:
                raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The form is larger than {MOST_FORM_BYTES >> 20} MiB.")
        pairs = parse_qsl(content.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ClientDisconnect as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, "The form ended early.") from error
    except UnicodeDecodeError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, "The fields are not UTF-8.") from error
    except ValueError as error:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"There are more than {MOST_FIELDS} fields.") from error
    return ImmutableMultiDict(pairs)


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
        """Refuse a token that is not valid. Raises Refusal."""
        digits, _, mac = token.partition(".")
        until = int(digits, 16) if _HEXADECIMAL.fullmatch(digits) else 0
        if not hmac.compare_digest(mac.encode(), self._mac(user, action, until).encode()):
            raise Refusal(HTTPStatus.FORBIDDEN, "The form's token is not valid. Open the page again, and send the form again.")
        if until < (time.time() if now is None else now):
            raise Refusal(HTTPStatus.FORBIDDEN, "The form is older than 8 hours. Open the page again.")

    def _mac(self, user: str, action: str, until: int) -> str:
        return hmac.digest(self._key, "\0".join((user, action, str(until))).encode(), "sha256").hex()


class Nonces:
    """Numbers that each confirm one thing once. The last 10,000 that were used are remembered, in this process.

    Actions store theirs, so other processes refuse them as well.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[str, None] = OrderedDict()

    def issue(self) -> str:
        return secrets.token_urlsafe(12)

    def use(self, nonce: str) -> None:
        """Use it. Raises Refusal the second time."""
        if not nonce or nonce in self._used:
            raise Refusal(HTTPStatus.CONFLICT, SENT_BEFORE)
        self._used[nonce] = None
        while len(self._used) > NONCES:
            self._used.popitem(last=False)
