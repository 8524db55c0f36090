"""The dashboard as an ASGI application: one gate before all routes, and one sampler for all viewers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from re import Pattern
from types import MappingProxyType
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.routing import compile_path

from onceonly.dashboard.access import (
    BODY,
    DELETE,
    EDIT,
    EVERYONE,
    FORCE,
    READING,
    RETRY,
    VIEW,
    Authentication,
    TooManyGuesses,
    User,
)
from onceonly.dashboard.acting import RESUME_SECONDS, Acting, Nonces
from onceonly.dashboard.asking import Answer, Ask
from onceonly.dashboard.auditing import Auditor
from onceonly.dashboard.gate import (
    TOKEN,
    FormTokens,
    Refused,
    check_host,
    check_origin,
    protect,
    read_form,
    read_query,
    read_upload,
)
from onceonly.dashboard.probes import Probe, Sampler
from onceonly.dashboard.reading import SharedResults
from onceonly.dashboard.redaction import Redact
from onceonly.dashboard.rendering import STATIC, THEME_COOKIE, THEMES, Frame, Page, render_html, render_json, static_file
from onceonly.dashboard.views import (
    actions,
    confirming,
    conversation,
    editing,
    exporting,
    importing,
    letters,
    messages,
    overview,
    settings,
)
from onceonly.dashboard.watching import WatchedEndpoint
from onceonly.dashboard.workers import WorkerAddress
from onceonly.endpoint import Endpoint
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError
from onceonly.runtime.environment import LIVE, Environment

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
View = Callable[[Ask], Awaitable[Answer]]

REFRESH = "x-refresh"
"""The header of a request with which an open page refreshes itself."""
NOTHING: Mapping[str, str] = MappingProxyType({})

_log = EventLogger(logging.getLogger("onceonly.dashboard"))


class Route(NamedTuple):
    """A path with one method, and the role that it needs. `writes` is False where nothing but a cookie changes.

    `uploads` if its form has a file.
    """

    method: str
    path: str
    role: str
    view: View
    writes: bool = False
    uploads: bool = False

    @property
    def pattern(self) -> Pattern[str]:
        """The pattern of its paths, without the prefix."""
        return compile_path(self.path)[0]


class Access(NamedTuple):
    """Users, their roles, and the hosts that are served."""

    auth: Authentication
    roles: Mapping[str, frozenset[str]]
    hosts: frozenset[str]
    read_only: bool

    def roles_of(self, user: User) -> frozenset[str]:
        """Return the roles of a user. A read-only dashboard leaves those for reading."""
        own = user.roles if user.roles is not None else self.roles.get(user.name, self.roles.get(EVERYONE, frozenset()))
        return own & READING if self.read_only else own


class Options(NamedTuple):
    """Settings of pages: see `dashboard`."""

    redact: Redact | None = None
    links: Mapping[str, str] = NOTHING
    audit_views: bool = False
    send_as_new: bool = False
    workers: Sequence[str] = ()


DEFAULT_OPTIONS = Options()
SEND_AS_NEW = "/act/new"
EXPORT = "/act/export"


class Dashboard:
    """The application. Mounted without its lifespan, it starts its sampler at the first request that passes the gate."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        access: Access,
        tokens: FormTokens,
        *,
        options: Options = DEFAULT_OPTIONS,
        environment: Environment = LIVE,
    ) -> None:
        self.access = access
        self.redact = options.redact
        self.links = options.links
        self.options = options
        self.targets: Mapping[str, str] = {}
        self.tokens = tokens
        self.environment = environment
        workers = [WorkerAddress(url, environment) for url in options.workers]
        self.watched = {each.settings.name: WatchedEndpoint(each, environment, workers) for each in endpoints}
        self.auditor = Auditor(access.auth.method, environment.clock)
        self.acting = Acting(self.auditor)
        self.nonces = Nonces()
        self.results = SharedResults(environment.timer)
        asking: list[Probe[Any, Any]] = [each.probe for each in workers]
        resuming = [] if access.read_only else [self._resuming(watched) for watched in self.watched.values()]
        self.sampler = Sampler(
            [probe for watched in self.watched.values() for probe in watched.probes] + asking + resuming,
            closing=[watched.close for watched in self.watched.values()],
        )
        self.routes = tuple(
            route
            for route in routes()
            if not (access.read_only and route.writes) and (options.send_as_new or route.path != SEND_AS_NEW)
        )
        self._patterns = [(route.pattern, route) for route in self.routes]

    def name_targets(self, targets: Sequence[str]) -> None:
        """Set how commands name the endpoints, such as shop:shop, in their order."""
        self.targets = dict(zip(self.watched, targets, strict=True))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve HTTP and the lifespan; other connections are refused."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            response = await self._respond(scope, receive)
            await response(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    def _resuming(self, watched: WatchedEndpoint) -> Probe[Any, Any]:
        """Return what continues, every 30 seconds, the actions whose process ended."""

        @asynccontextmanager
        async def running() -> AsyncIterator[WatchedEndpoint]:
            try:
                yield watched
            finally:
                await self.acting.stop()

        return Probe(running, self.acting.resume, numbers=lambda _: {}, period=RESUME_SECONDS, environment=self.environment)

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
        """Return the route of a path without the prefix, and its parameters."""
        for pattern, route in self._patterns:
            if route.method == method and (found := pattern.match(path)):
                return route, found.groupdict()
        return None

    def _methods(self, path: str) -> Sequence[str]:
        return sorted({route.method for pattern, route in self._patterns if pattern.match(path)})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        async with self.sampler.running(self.environment.clock.now()):
            while True:
                message = await receive()
                if message["type"] == "lifespan.startup":
                    await send({"type": "lifespan.startup.complete"})
                elif message["type"] == "lifespan.shutdown":
                    break
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        frame: Frame | None = None
        wants_json = "application/json" in Headers(scope=scope).get("accept", "")
        try:
            ask = await self._admit(scope, receive)
            if isinstance(ask, Response):
                return protect(ask)
            frame = self._frame(ask)
            found = self.find(ask.method, ask.path)
            answer = await self._served(ask, found[0]) if found is not None else None
        except Refused as refused:
            answer = Page(
                template="refused.html",
                title=refused.status.phrase,
                data={"error": refused.status.phrase, "reason": refused.reason},
                status=refused.status,
            )
            response = self._written(answer, frame or _bare_frame(scope, self.environment.clock.now()), wants_json=wants_json)
            response.headers.update(refused.headers)
            return response
        except OnceOnlyError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever happened, a page says so
            _log.exception("dashboard page failed", extra={"path": scope.get("path", ""), "error": type(error).__name__})
            reason = "The page failed with an error of the dashboard. Its log has the traceback."
            answer = _failed(reason, HTTPStatus.INTERNAL_SERVER_ERROR)
            return self._written(answer, frame or _bare_frame(scope, self.environment.clock.now()), wants_json=wants_json)
        else:
            if isinstance(answer, Response):
                return answer if "content-security-policy" in answer.headers else protect(answer)
            assert answer is not None and frame is not None  # noqa: S101, PT018 - the gate has found the route
            return self._written(answer, frame, wants_json=wants_json)
        answer = _failed(reason, HTTPStatus.SERVICE_UNAVAILABLE)
        return self._written(answer, frame or _bare_frame(scope, self.environment.clock.now()), wants_json=wants_json)

    async def _served(self, ask: Ask, route: Route) -> Answer:
        """Call the view. A refused action is reported, and stored: its user passed the gate."""
        try:
            return await route.view(ask)
        except Refused as refused:
            if route.writes and ask.method == "POST":
                await confirming.report_refused(ask, refused)
            raise

    def _written(self, page: Page, frame: Frame, *, wants_json: bool) -> Response:
        return protect(render_json(page) if wants_json else render_html(page, frame))

    async def _admit(self, scope: Scope, receive: Receive) -> Ask | Response:
        """Pass a request through the gate: host, user, route, role, origin, form, token. Raises Refused."""
        headers = Headers(scope=scope)
        check_host(headers, self.access.hosts)
        user = await self._identify(scope)
        base, path = _split_path(scope)
        if not path:
            return RedirectResponse(f"{base}/", status_code=HTTPStatus.TEMPORARY_REDIRECT)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            return await self._permitted(scope, receive, user, method)
        except Refused as refused:
            # only a line of the log: a page of a stranger can cause such a request, and must not fill a table
            if method == "POST" and any(route.pattern.match(path) for route in routes() if route.writes):
                self.auditor.refused(user.name, path, refused)
            raise

    async def _permitted(self, scope: Scope, receive: Receive, user: User, method: str) -> Ask:
        """Check route, role, origin, form and token of a user's request. Raises Refused."""
        headers, (base, path) = Headers(scope=scope), _split_path(scope)
        found = self.find(method, path)
        roles = self.access.roles_of(user)
        if found is None:
            if VIEW not in roles:
                raise Refused(HTTPStatus.FORBIDDEN, f"User {user.name} has no role of this dashboard.")
            if allowed := self._methods(path):
                raise Refused(
                    HTTPStatus.METHOD_NOT_ALLOWED,
                    "This page does not serve that method.",
                    headers={"allow": ", ".join(allowed)},
                )
            raise Refused(HTTPStatus.NOT_FOUND, "The page does not exist.")
        route, params = found
        if route.role not in roles:
            raise Refused(HTTPStatus.FORBIDDEN, f"This needs the role {route.role!r}, which user {user.name} does not have.")
        query, form, files = read_query(scope.get("query_string", b"")), dict[str, list[str]](), dict[str, bytes]()
        if method == "POST":
            check_origin(headers)
            if route.uploads:
                form, files = await read_upload(headers, receive)
            else:
                form = await read_form(headers, receive)
            self.tokens.check(form.get(TOKEN, [""])[0], user.name, path)
        self.sampler.start(self.environment.clock.now())
        return Ask(
            dashboard=self,
            user=user.name,
            method=method,
            roles=roles,
            base=base,
            path=path,
            theme=_theme(headers),
            params=params,
            query=query,
            form=form,
            files=files,
            scope=scope,
            now=self.environment.clock.now(),
            refreshing=REFRESH in headers,
        )

    async def _identify(self, scope: Scope) -> User:
        auth = self.access.auth
        try:
            user = await auth.identify(scope)
        except TooManyGuesses as error:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                "Credentials were wrong too often. Wait, then try again.",
                headers={"retry-after": str(max(1, round(error.seconds + 0.5)))},
            ) from error
        if user is not None:
            return user
        if auth.challenge:
            raise Refused(HTTPStatus.UNAUTHORIZED, "Log in to see this page.", headers={"www-authenticate": auth.challenge})
        raise Refused(HTTPStatus.FORBIDDEN, "You may not see this page.")

    def _frame(self, ask: Ask) -> Frame:
        def token(action: str) -> str:
            return self.tokens.issue(ask.user, action)

        own = {route.path for route in self.routes if route.method == "GET" and route.role in ask.roles}
        nav = tuple((path, title) for path, title in NAVIGATION if path in own)
        return Frame(ask.base, ask.path, ask.theme, ask.user, ask.roles, nav, token, ask.now, exports=EXPORT in own)


NAVIGATION = (
    ("/", "Overview"),
    ("/dead", "Dead letters"),
    ("/find", "Find"),
    ("/pending", "Pending"),
    ("/claims", "Claims"),
    ("/settings", "Settings"),
    ("/actions", "Actions"),
)


def routes() -> tuple[Route, ...]:
    """Return all routes with the role that each needs."""
    return (
        Route("GET", "/", VIEW, overview.overview),
        Route("GET", "/e/{name}", VIEW, overview.endpoint),
        Route("GET", "/dead", VIEW, letters.groups),
        Route("GET", "/dead/g/{key}", VIEW, letters.group),
        Route("GET", "/dead/{key}", VIEW, letters.letter),
        Route("GET", "/dead/{key}/body", BODY, letters.body),
        Route("GET", "/find", VIEW, messages.find),
        Route("GET", "/c/{key}", VIEW, conversation.conversation),
        Route("GET", "/pending", VIEW, messages.pending),
        Route("GET", "/claims", VIEW, messages.claims),
        Route("GET", "/settings", VIEW, settings.settings),
        Route("GET", "/actions", VIEW, actions.actions),
        Route("GET", "/actions/{name}/{position}", VIEW, actions.action),
        Route("POST", "/actions/{name}/{position}/stop", RETRY, actions.stop, writes=True),
        Route("POST", "/actions/{name}/{position}/restore", DELETE, actions.restore_letters, writes=True),
        Route("GET", "/act/retry", RETRY, confirming.ask_first, writes=True),
        Route("POST", "/act/retry", RETRY, confirming.act, writes=True),
        Route("GET", "/act/delete", DELETE, confirming.ask_first, writes=True),
        Route("POST", "/act/delete", DELETE, confirming.act, writes=True),
        Route("GET", "/act/force", FORCE, confirming.ask_first, writes=True),
        Route("POST", "/act/force", FORCE, confirming.act, writes=True),
        Route("GET", "/act/edit", EDIT, editing.edit_form, writes=True),
        Route("POST", "/act/edit", EDIT, editing.save_edit, writes=True),
        Route("GET", "/act/import", EDIT, importing.import_form, writes=True),
        Route("POST", "/act/import", EDIT, importing.import_body, writes=True, uploads=True),
        Route("GET", EXPORT, BODY, confirming.ask_first, writes=True),
        Route("POST", EXPORT, BODY, exporting.export, writes=True),
        Route("GET", "/metrics", VIEW, _metrics),
        Route("GET", SEND_AS_NEW, EDIT, confirming.ask_first, writes=True),
        Route("POST", SEND_AS_NEW, EDIT, confirming.act, writes=True),
        Route("GET", "/static/{name}", VIEW, _static),
        Route("POST", "/theme", VIEW, _choose_theme),
    )


async def _metrics(ask: Ask) -> Response:
    """Return the counter of actions in this process as Prometheus text."""
    return Response(ask.dashboard.auditor.prometheus(), media_type="text/plain; version=0.0.4")


async def _static(ask: Ask) -> Response:
    media_type = STATIC.get(ask.params["name"])
    if media_type is None:
        raise Refused(HTTPStatus.NOT_FOUND, "The file does not exist.")
    return Response(static_file(ask.params["name"]), media_type=media_type)


async def _choose_theme(ask: Ask) -> Response:
    """Remember the theme in a cookie, and return to the page."""
    theme, back = ask.sent("theme"), ask.sent("back")
    target = back if ask.dashboard.find("GET", back) is not None else "/"
    response = RedirectResponse(ask.base + target, status_code=HTTPStatus.SEE_OTHER)
    response.set_cookie(
        THEME_COOKIE,
        theme if theme in THEMES else THEMES[0],
        max_age=365 * 24 * 3600,
        path=f"{ask.base}/",
        secure=ask.scope.get("scheme") == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _theme(headers: Headers) -> str:
    chosen = cookie_parser(headers.get("cookie", "")).get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else THEMES[0]


def _split_path(scope: Scope) -> tuple[str, str]:
    """Return the prefix, and the path behind it."""
    path, base = scope["path"], scope.get("root_path", "").rstrip("/")
    return base, path[len(base) :] if path == base or path.startswith(f"{base}/") else path


def _bare_frame(scope: Scope, now: int) -> Frame:
    """Return the frame of a page for a request that did not pass the gate: no links, no forms."""
    return Frame(_split_path(scope)[0], "", THEMES[0], "", frozenset(), (), None, now)


def _failed(reason: str, status: HTTPStatus) -> Page:
    return Page(template="refused.html", title="Not available", data={"error": status.phrase, "reason": reason}, status=status)


async def run_until_cancelled(dashboard: Dashboard) -> None:
    """Run the sampler alone, for programs that serve the application without its lifespan."""
    async with dashboard.sampler.running(dashboard.environment.clock.now()):
        await asyncio.Event().wait()
