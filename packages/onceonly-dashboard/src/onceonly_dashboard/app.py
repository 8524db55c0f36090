"""The dashboard as an ASGI application: Starlette's router behind one gate, and one sampler for all viewers."""

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route, Router, compile_path
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from onceonly.endpoint import Endpoint
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError
from onceonly.runtime.environment import LIVE, Environment
from onceonly_dashboard.access import BODY, DELETE, EDIT, FORCE, RETRY, VIEW
from onceonly_dashboard.action_worker import ActionWorker
from onceonly_dashboard.auditor import RequestAuditor
from onceonly_dashboard.cache import SharedResults
from onceonly_dashboard.endpoint_probes import EndpointProbes
from onceonly_dashboard.gate import (
    TOKEN,
    AccessSettings,
    FormTokens,
    ListedHosts,
    Nonces,
    Refusal,
    RoleBackend,
    SecurityHeaders,
    check_origin,
    check_query,
    read_form,
)
from onceonly_dashboard.page_request import THEME_COOKIE, THEMES, PageContent, PageOptions, PageRequest, PageServices, View
from onceonly_dashboard.pages import render_html, render_json
from onceonly_dashboard.probes import Probe, Sampler
from onceonly_dashboard.views import actions, confirmation, edit, letters, messages, overview, settings
from onceonly_dashboard.workers import WorkerAddress

SEND_AS_NEW = "/act/new"
RESUME_SECONDS = 30.0
"""Actions whose process has ended are continued after this time."""
NAVIGATION = (
    ("/", "Overview"),
    ("/dead", "Dead letters"),
    ("/find", "Find"),
    ("/pending", "Pending"),
    ("/claims", "Claims"),
    ("/settings", "Settings"),
    ("/actions", "Actions"),
)
DEFAULT_OPTIONS = PageOptions()

_STATIC = StaticFiles(packages=[("onceonly_dashboard", "static")])
_log = EventLogger(logging.getLogger("onceonly.dashboard"))


class PageRoute(NamedTuple):
    """A path with one method, and the role that it needs. `writes` is False where nothing but a cookie changes."""

    method: str
    path: str
    role: str
    view: View
    writes: bool = False


class Dashboard:
    """The application. Mounted without its lifespan, it starts its sampler at the first request that passes the gate."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        access: AccessSettings,
        tokens: FormTokens,
        *,
        options: PageOptions = DEFAULT_OPTIONS,
        environment: Environment = LIVE,
    ) -> None:
        self.access, self.tokens, self.environment = access, tokens, environment
        workers = [WorkerAddress(url, environment) for url in options.workers]
        every = [EndpointProbes(each, environment, workers) for each in endpoints]
        auditor = RequestAuditor(access.auth.method, environment.clock)
        action_worker = ActionWorker(auditor)
        probes = [probe for each in every for probe in each.all_probes] + [each.probe for each in workers]
        if not access.read_only:
            probes += [
                Probe(partial(nullcontext, each), action_worker.resume, period=RESUME_SECONDS, environment=environment)
                for each in every
            ]
        self.sampler = Sampler(probes, closing=[action_worker.stop, *(each.close for each in every)])
        self.services = PageServices(
            endpoints={each.name: each for each in every},
            options=options,
            targets={},
            sampler=self.sampler,
            results=SharedResults(environment.timer),
            auditor=auditor,
            action_worker=action_worker,
            nonces=Nonces(),
        )
        self.routes = tuple(
            route
            for route in routes()
            if not (access.read_only and route.writes) and (options.send_as_new or route.path != SEND_AS_NEW)
        )
        handlers: dict[Any, Any] = {HTTPException: self._refuse, Exception: self._fail}
        self._router = Router(
            [Route(each.path, partial(self._serve, each), methods=[each.method]) for each in self.routes],
            lifespan=self._run_sampler,
            middleware=[
                Middleware(SecurityHeaders),
                Middleware(ExceptionMiddleware, handlers=handlers),
                Middleware(ListedHosts, hosts=access.hosts),
                Middleware(AuthenticationMiddleware, backend=RoleBackend(access)),
            ],
        )

    def name_targets(self, targets: Sequence[str]) -> None:
        """Set how commands name the endpoints, such as shop:shop, in their order."""
        self.services.targets.update(zip(self.services.endpoints, targets, strict=True))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve HTTP and the lifespan; other connections are refused."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        else:  # a copy: the application around this one keeps its own user
            await self._router({**scope, "app": self}, receive, send)

    @asynccontextmanager
    async def _run_sampler(self, _app: object) -> AsyncIterator[None]:
        async with self.sampler.running(self.environment.clock.now()):
            yield

    async def _serve(self, route: PageRoute, plain: Request) -> Response:
        """Pass a request through the gate, and call its view. Raises Refusal."""
        request = self._request(plain)
        try:
            await self._admit(request, route)
        except Refusal as refused:
            self._log_refused(request, refused)
            raise
        self.sampler.start(request.now)
        try:
            answer = await route.view(request, self.services)
        except Refusal as refused:
            if route.writes and request.method == "POST":
                await confirmation.report_refused(request, self.services, refused)
            raise
        return self._render(request, answer) if isinstance(answer, PageContent) else answer

    async def _admit(self, request: PageRequest, route: PageRoute) -> None:
        """Check role, origin, form and token of a request. Raises Refusal."""
        if route.role not in request.roles:
            raise Refusal(
                HTTPStatus.FORBIDDEN, f"This needs the role {route.role!r}, which user {request.user_name} does not have."
            )
        check_query(request)
        if request.method == "POST":
            check_origin(request.headers)
            request.form_fields = await read_form(request)
            request.tokens.check(request.form_value(TOKEN), request.user_name, request.path)

    def _log_refused(self, request: PageRequest, refused: Refusal) -> None:
        """Log a form that was refused, only that: a page of a stranger can cause such a request, and must not fill a table."""
        if request.method == "POST" and request.path.startswith(("/act/", "/actions/")):
            self.services.auditor.refused(request.user_name, request.path, refused)

    async def _refuse(self, plain: Request, error: HTTPException) -> Response:
        request = self._request(plain)
        if not isinstance(error, Refusal):
            error = self._not_served(request, error)
            self._log_refused(request, error)
        status = HTTPStatus(error.status_code)
        response = self._render(request, _refusal(status, status.phrase, error.detail))
        response.headers.update(error.headers or {})
        return response

    def _not_served(self, request: PageRequest, error: HTTPException) -> Refusal:
        """Return why the router does not serve a request."""
        if VIEW not in request.roles:
            return Refusal(HTTPStatus.FORBIDDEN, f"User {request.user_name} has no role of this dashboard.")
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            pairs = zip(self.routes, self._router.routes, strict=True)
            allowed = {own.method for own, route in pairs if route.matches(request.scope)[0] is Match.PARTIAL}
            return Refusal(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "This page does not serve that method.",
                headers={"allow": ", ".join(sorted(allowed))},
            )
        return Refusal(HTTPStatus.NOT_FOUND, "The page does not exist.")

    async def _fail(self, plain: Request, error: Exception) -> Response:
        status, reason = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        if not isinstance(error, OnceOnlyError):
            path = plain.scope["path"]
            _log.exception("dashboard page failed", extra={"path": path, "error": type(error).__name__})
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            reason = "The page failed with an error of the dashboard. Its log has the traceback."
        return self._render(self._request(plain), _refusal(status, "Not available", reason))

    def _request(self, plain: Request) -> PageRequest:
        request = PageRequest(plain.scope, plain.receive)
        request.now, request.tokens = self.environment.clock.now(), self.tokens
        own = {route.path for route in self.routes if route.method == "GET" and route.role in request.roles}
        request.navigation = [(path, title) for path, title in NAVIGATION if path in own]
        return request

    def _render(self, request: PageRequest, page: PageContent) -> Response:
        if "application/json" in request.headers.get("accept", ""):
            return render_json(page)
        return render_html(page, request)


def _refusal(status: HTTPStatus, title: str, reason: str) -> PageContent:
    return PageContent(template="refused.html", title=title, data={"error": status.phrase, "reason": reason}, status=status)


def routes() -> tuple[PageRoute, ...]:
    """Return all routes with the role that each needs."""
    return (
        PageRoute("GET", "/", VIEW, overview.overview),
        PageRoute("GET", "/e/{name}", VIEW, overview.endpoint),
        PageRoute("GET", "/dead", VIEW, letters.groups),
        PageRoute("GET", "/dead/g/{key}", VIEW, letters.group),
        PageRoute("GET", "/dead/{key}", VIEW, letters.letter),
        PageRoute("GET", "/dead/{key}/body", BODY, letters.body),
        PageRoute("GET", "/find", VIEW, messages.find),
        PageRoute("GET", "/c/{key}", VIEW, messages.conversation),
        PageRoute("GET", "/pending", VIEW, messages.pending),
        PageRoute("GET", "/claims", VIEW, messages.claims),
        PageRoute("GET", "/settings", VIEW, settings.settings),
        PageRoute("GET", "/actions", VIEW, actions.actions),
        PageRoute("GET", "/actions/{name}/{position}", VIEW, actions.action),
        PageRoute("POST", "/actions/{name}/{position}/stop", RETRY, actions.stop, writes=True),
        PageRoute("POST", "/actions/{name}/{position}/restore", DELETE, actions.restore_letters, writes=True),
        *_form("/act/retry", RETRY, confirmation.show_confirmation, confirmation.start_action),
        *_form("/act/delete", DELETE, confirmation.show_confirmation, confirmation.start_action),
        *_form("/act/force", FORCE, confirmation.show_confirmation, confirmation.start_action),
        *_form("/act/edit", EDIT, edit.edit_form, edit.save_edit),
        *_form(SEND_AS_NEW, EDIT, confirmation.show_confirmation, confirmation.start_action),
        PageRoute("GET", "/metrics", VIEW, _metrics),
        PageRoute("GET", "/static/{name}", VIEW, _static),
        PageRoute("POST", "/theme", VIEW, _choose_theme),
    )


def _form(path: str, role: str, show: View, save: View) -> tuple[PageRoute, PageRoute]:
    return PageRoute("GET", path, role, show, writes=True), PageRoute("POST", path, role, save, writes=True)


async def _metrics(_request: PageRequest, services: PageServices) -> Response:
    """Return the counter of actions in this process as Prometheus text."""
    return Response(services.auditor.prometheus(), media_type="text/plain; version=0.0.4")


async def _static(request: PageRequest, _services: PageServices) -> Response:
    return await _STATIC.get_response(request.path_params["name"], request.scope)


async def _choose_theme(request: PageRequest, _services: PageServices) -> Response:
    """Remember the theme in a cookie, and return to the page."""
    theme, back = request.form_value("theme"), request.form_value("back")
    is_page = any(compile_path(each.path)[0].match(back) for each in routes() if each.method == "GET")
    response = RedirectResponse(request.base + (back if is_page else "/"), status_code=HTTPStatus.SEE_OTHER)
    response.set_cookie(
        THEME_COOKIE,
        theme if theme in THEMES else THEMES[0],
        max_age=365 * 24 * 3600,
        path=f"{request.base}/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response
