"""A request as pages see it, after the gate: user, page, fields."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from starlette.responses import Response

from onceonly.dashboard.gate import Refused
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.watching import WatchedEndpoint

if TYPE_CHECKING:
    from onceonly.dashboard.app import Dashboard

Answer = Page | Response
_Value = TypeVar("_Value")


class Ask(Struct, frozen=True, kw_only=True):
    """One request. `base` is the prefix under which the dashboard is mounted, `path` is without it.

    `refreshing` if an open page refreshes itself: it gets what another one has read in the same period.
    """

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
    files: Mapping[str, bytes]
    scope: Mapping[str, Any]
    now: int
    refreshing: bool = False

    def has(self, role: str) -> bool:
        """Return whether the user has a role."""
        return role in self.roles

    def asked(self, name: str, default: str = "") -> str:
        """Return the first value of a field of the query."""
        return self.query.get(name, (default,))[0]

    def sent(self, name: str, default: str = "") -> str:
        """Return the first value of a field of the form."""
        return self.form.get(name, (default,))[0]

    async def shared(self, key: Hashable, read: Callable[[], Awaitable[_Value]], period: float) -> _Value:
        """Return what all viewers of a page share for `period` seconds. Raises what `read` raises."""
        return await self.dashboard.results.get(key, read, period=period, refreshing=self.refreshing)

    def watched(self, name: str | None = None) -> WatchedEndpoint:
        """Return the endpoint of this name, by default that of the path. Raises Refused if the dashboard does not have it."""
        wanted = self.params["name"] if name is None else name
        found = self.dashboard.watched.get(wanted)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "This dashboard has no endpoint of that name.")
        return found
