"""A request as pages see it, after the gate: user, page, fields."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.responses import Response

from onceonly.dashboard.gate import Refused
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.watching import WatchedEndpoint

if TYPE_CHECKING:
    from onceonly.dashboard.app import Dashboard

Answer = Page | Response


class Ask(Struct, frozen=True, kw_only=True):
    """One request. `base` is the prefix under which the dashboard is mounted, `path` is without it."""

    dashboard: "Dashboard"
    user: str
    method: str
    roles: frozenset[str]
    base: str
    path: str
    theme: str
    params: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    form: Mapping[str, Sequence[str]]
    scope: Mapping[str, Any]
    now: int

    def has(self, role: str) -> bool:
        """Return whether the user has a role."""
        return role in self.roles

    def asked(self, name: str, default: str = "") -> str:
        """Return the first value of a field of the query."""
        return self.query.get(name, (default,))[0]

    def sent(self, name: str, default: str = "") -> str:
        """Return the first value of a field of the form."""
        return self.form.get(name, (default,))[0]

    def watched(self, name: str | None = None) -> WatchedEndpoint:
        """Return the endpoint of this name, by default that of the path. Raises Refused if the dashboard does not have it."""
        wanted = self.params["name"] if name is None else name
        found = self.dashboard.watched.get(wanted)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "This dashboard has no endpoint of that name.")
        return found
