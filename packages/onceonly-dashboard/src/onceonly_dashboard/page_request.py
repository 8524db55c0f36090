"""A request as pages see it, what pages read from and act with, and what they show."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from onceonly_dashboard.action_worker import ActionWorker
from onceonly_dashboard.auditor import RequestAuditor
from onceonly_dashboard.cache import SharedResults
from onceonly_dashboard.endpoint_probes import EndpointProbes
from onceonly_dashboard.gate import DashboardUser, FormTokens, Nonces, Refusal
from onceonly_dashboard.probes import Sampler
from onceonly_dashboard.redaction import Redact

REFRESH = "x-refresh"
"""The header of a request with which an open page refreshes itself: it gets what another one has read in the same period."""

THEMES = ("system", "light", "dark")
THEME_COOKIE = "onceonly_theme"

_Value = TypeVar("_Value")


class PageRequest(Request):
    """One request. `now` is in milliseconds since 1970, `form_fields` are those of a form that passed the gate.

    `navigation` has the paths and titles of the pages that the user may open.
    """

    now: int
    tokens: FormTokens
    navigation: Sequence[tuple[str, str]] = ()
    form_fields: ImmutableMultiDict[str, str] = ImmutableMultiDict()

    @property
    def base(self) -> str:
        """The prefix under which the dashboard is mounted."""
        return str(self.scope.get("root_path", "")).rstrip("/")

    @property
    def path(self) -> str:
        """The path without the prefix."""
        path = str(self.scope["path"])
        return path[len(self.base) :] if path.startswith(f"{self.base}/") else path

    @property
    def user_name(self) -> str:
        """The name of the user, empty until the user is authenticated."""
        user = self.scope.get("user")
        return user.display_name if isinstance(user, DashboardUser) else ""

    @property
    def roles(self) -> frozenset[str]:
        return frozenset(self.auth.scopes) if isinstance(self.scope.get("user"), DashboardUser) else frozenset()

    @property
    def theme(self) -> str:
        chosen = self.cookies.get(THEME_COOKIE, "")
        return chosen if chosen in THEMES else THEMES[0]

    def token(self, action: str) -> str:
        """Return the token of a form: the path of its action."""
        return self.tokens.issue(self.user_name, action)

    def query_value(self, name: str) -> str:
        return self.query_params.get(name, "")

    def form_value(self, name: str, default: str = "") -> str:
        return self.form_fields.get(name, default)


class PageOptions(NamedTuple):
    """Settings of pages: see `dashboard`."""

    redact: Redact | None = None
    links: Mapping[str, str] = MappingProxyType({})
    audit_views: bool = False
    send_as_new: bool = False
    workers: Sequence[str] = ()


class PageServices(NamedTuple):
    """What pages read from and act with. All requests share it. `targets` are the names of endpoints in commands."""

    endpoints: Mapping[str, EndpointProbes]
    options: PageOptions
    targets: dict[str, str]
    sampler: Sampler
    results: SharedResults
    auditor: RequestAuditor
    action_worker: ActionWorker
    nonces: Nonces

    def endpoint(self, name: str) -> EndpointProbes:
        """Return the endpoint of this name. Raises Refusal if the dashboard does not have it."""
        if name not in self.endpoints:
            raise Refusal(HTTPStatus.NOT_FOUND, "This dashboard has no endpoint of that name.")
        return self.endpoints[name]

    def chosen(self, request: PageRequest) -> list[EndpointProbes]:
        """Return the endpoints that the query names, by default all. Raises Refusal."""
        return [self.endpoint(name) for name in request.query_params.getlist("endpoint") or self.endpoints]

    async def shared(self, request: PageRequest, key: Hashable, read: Callable[[], Awaitable[_Value]], period: float) -> _Value:
        """Return what all viewers of a page share for `period` seconds. Raises what `read` raises."""
        return await self.results.get(key, read, period=period, refreshing=REFRESH in request.headers)


class PageContent(Struct, kw_only=True):
    """What a page shows. `data` is what JSON returns, and what the template gets. `view` is for the template only.

    `every` is the period in seconds in which an open page is refreshed; 0 for never.
    """

    template: str
    title: str
    data: Mapping[str, Any] = {}
    view: Mapping[str, Any] = {}
    every: int = 0
    status: HTTPStatus = HTTPStatus.OK


Answer = PageContent | Response
View = Callable[[PageRequest, PageServices], Awaitable[Answer]]
