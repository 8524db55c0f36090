"""The part of an endpoint that other services have something executed at: its responders, and what serves them."""

from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onceonly.endpoint.http_app import HttpApp, Principal
from onceonly.endpoint.registration import RegisteredHandler
from onceonly.endpoint.signatures import Function, callers_frame

if TYPE_CHECKING:
    from onceonly.endpoint.endpoint import Endpoint

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Responding:
    """Registers responders, and gives the ASGI application."""

    _handlers: list[RegisteredHandler]
    _responders: list[RegisteredHandler]
    _function: Callable[[Callable[..., Any], FrameType | None], Function]

    @property
    def has_responders(self) -> bool:
        """Whether other services may have anything executed here."""
        return bool(self._responders)

    @property
    def only_sends(self) -> bool:
        """Whether nothing is ever executed here: there are neither handlers nor responders."""
        return not (self._handlers or self._responders)

    @overload
    def responder(self, function: _Function, /) -> _Function: ...
    @overload
    def responder(self, *, type: str | None = ..., timeout: float | None = ...) -> Callable[[_Function], _Function]: ...
    def responder(
        self,
        function: Any = None,
        *,
        type: str | None = None,  # noqa: A002 - as of a handler
        timeout: float | None = None,
    ) -> Any:
        """Register what executes one operation for other services, once for each request; gives the function back unchanged.

        The first parameter's class decides how the request's body is read, and its name, or `type`, is the operation's; the
        others are injected as into a handler. What it changes and sends is committed together with what it returns: an
        object that a body may be (200), None (204), or a `Response`. `Reject` is an answer, too: 422 with the reason. After
        any other exception nothing has happened, and the caller asks again.
        Raises InvalidHandler for what is no function; all else about it is judged at start.
        """
        frame = callers_frame()

        def register(function: _Function) -> _Function:
            self._responders.append(RegisteredHandler(self._function(function, frame), type, None, timeout))
            return function

        return register if function is None else register(function)

    def http_app(self: "Endpoint", *, principal: Principal | None = None) -> HttpApp:  # type: ignore[misc]  # a part of it
        """Give the ASGI application that serves the responders, by the protocol of docs/http.md.

        Its server's lifespan opens the endpoint; mounted in another application, that has to: `async with shop.running():`.
        `principal` tells from the connection's scope who calls, "" for anybody; None is refused with 401. What one principal
        has asked for no other can have executed, read or delete.
        """
        return HttpApp(self, principal=principal)
