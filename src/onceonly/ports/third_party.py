"""Services that are not ours, as the algorithm calls them."""

from collections.abc import Sequence
from typing import Protocol

from onceonly.model.errors import OnceOnlyError
from onceonly.model.remote import Response
from onceonly.model.third_party import ApiCall


class ThirdParties(Protocol):
    """The services that an endpoint may call. Raises nothing of theirs: errors take the place of responses."""

    async def execute(self, calls: Sequence[ApiCall]) -> tuple[Response | OnceOnlyError, ...]:
        """Send each request once; returns the final response of each, or why there is none.

        PeerAway: the service may have executed the request or not. CommitRefused: no request was sent, or its answer can never
        be used.
        """

    async def find(self, call: ApiCall) -> Response | OnceOnlyError | None:
        """Find out what became of a call whose key must not be used any more.

        None: the service never executed it. PeerAway: ask again later. HandlerFailed: the outcome stays unknown.
        """
