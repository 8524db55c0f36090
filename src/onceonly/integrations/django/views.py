"""`idempotent`, a decorator of Django's views, and of those of Django REST framework and Django Ninja."""

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse

from onceonly.integrations.django.endpoint import DjangoEndpoint
from onceonly.integrations.django.requests import DjangoAttempt, DjangoRules
from onceonly.integrations.request_rules import SAFE, is_final
from onceonly.integrations.wsgi_bodies import served_once
from onceonly.model.errors import SetupError, TransactionMisused

Principal = Callable[[Any], str | None]
"""Returns the principal of a request, or the scope of its key. It gets the request as the view does."""
_View = TypeVar("_View", bound=Callable[..., Any])
_OPERATION = "onceonly.operation"


def by_user(request: Any) -> str | None:
    """Distinguish clients by the header `Authorization`, else by the authenticated user. Only a hash is stored."""
    found: str | None = request.META.get("HTTP_AUTHORIZATION")
    if found is not None:
        return found
    user: Any = getattr(request, "user", None)
    return f"user {user.pk}" if getattr(user, "is_authenticated", False) else None


def idempotent(  # noqa: PLR0913 - one parameter for each option
    endpoint: DjangoEndpoint,
    *,
    key_required: bool = True,
    principal: Principal = by_user,
    scope: Principal | None = None,
    max_body: int = 1 << 20,
    wait: float = 2.0,
    max_commit: timedelta | None = None,
    fingerprint: Callable[[Any, bytes], bytes | str] | None = None,
    store_if: Callable[[int], bool] = is_final,
) -> Callable[[_View], _View]:
    """Make a view handle each request once: `@idempotent(shop)` above a view, or above a method of a class-based view.

    The view runs in `transaction.atomic()` of the endpoint's database, and its signature is unchanged. Its rows, the messages
    of `shop.send` and `shop.publish`, and its response, status 2xx to 4xx, are committed before the first byte is sent. The
    response is returned to every retry with the same `Idempotency-Key`. An exception, also `Http404` and `ValidationError`,
    and a 5xx roll all of it back. Requests with a safe method, such as GET, are passed through.

    It decorates functions, methods of `View`, `APIView` and `ViewSet`, functions below `@api.post(...)` of Django Ninja, and
    what `as_view()` returns. They may be `async def`.

    * `key_required`: whether a request must have a key. One without is a transaction that is not deduplicated.
    * `principal`: returns the principal of a request, such as a user. The key of another principal is refused. Default: the
      header `Authorization`, else the authenticated user.
    * `scope`: returns the space of a key, such as a tenant. The same key in another scope is another key.
    * `max_body`: bytes of a request's body.
    * `wait`: seconds to wait for another request with the same key.
    * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
    * `fingerprint`: returns bytes or text of a request and its body. It replaces the comparison of query and body.
    * `store_if`: returns whether a response with this status is stored. If not, the transaction is rolled back, and the key is
      free. Default: all but 408, 423, 425, 429 and 5xx. A 5xx is never stored.

    Raises TransactionMisused for durations that no transaction can have, and SetupError for an endpoint that is not one of
    `onceonly.integrations.django`, and for what is not a view.
    """
    if not isinstance(endpoint, DjangoEndpoint):
        raise SetupError(
            "idempotent needs an endpoint whose store is a database of Django: use Endpoint of onceonly.integrations.django, "
            f"not {type(endpoint).__name__} of {type(endpoint).__module__}"
        )
    rules = DjangoRules(
        endpoint=endpoint,
        key_required=key_required,
        principal=principal,
        scope=scope,
        max_body=max_body,
        wait=wait,
        max_commit=max_commit,
        fingerprint=fingerprint,
        store_if=store_if,
    )

    def decorate(view: _View) -> _View:
        if isinstance(view, type):
            raise SetupError(f"idempotent decorates functions and methods: put it above the methods of {view.__name__}")
        if not callable(view):
            raise SetupError(f"idempotent decorates functions and methods, not {type(view).__name__}")
        decorated: _View = _decorated(view, rules)
        return decorated

    return decorate


def _decorated(view: Any, rules: DjangoRules) -> Any:
    def serve_sync(call: Callable[[], Any], arguments: tuple[Any, ...], values: dict[str, Any]) -> Any:
        request = _request_in(arguments, values)
        operation: _Operation | None = request.META.get(_OPERATION)
        if operation is not None and operation.view is served:
            return operation.call(call)
        if request.method in SAFE:
            return call()
        with served_once(request.META):
            return rules.serve(request, lambda attempt: _respond(attempt, call, arguments, request))

    if iscoroutinefunction(view):

        @wraps(view)
        async def served(*arguments: Any, **values: Any) -> Any:
            # The transaction is open in a thread. The view runs in its event loop meanwhile, and what it does by the ORM, and
            # by `sync_to_async`, runs in that thread again: asgiref promises it for what is sensitive to its thread.
            def call() -> Any:
                return async_to_sync(view)(*arguments, **values)

            return await sync_to_async(serve_sync)(call, arguments, values)
    else:

        @wraps(view)
        def served(*arguments: Any, **values: Any) -> Any:
            return serve_sync(lambda: view(*arguments, **values), arguments, values)

    served._non_atomic_requests = {rules.endpoint.database}  # type: ignore[attr-defined]  # noqa: SLF001 - as Django's own
    _tell_ninja(served, rules)
    return served


def _respond(attempt: DjangoAttempt, call: Callable[[], Any], arguments: tuple[Any, ...], request: Any) -> HttpResponse:
    attempt.open()
    response: Any = call()
    if getattr(response, "exception", False) is True:  # Django REST framework has made it of an exception
        attempt.roll_back()
    if hasattr(request, "accepted_renderer") and hasattr(response, "data") and not hasattr(response, "accepted_renderer"):
        # of a method of Django REST framework, whose view does this after the method
        response.accepted_renderer = request.accepted_renderer
        response.accepted_media_type = request.accepted_media_type
        response.renderer_context = arguments[0].get_renderer_context()
    made: HttpResponse = response
    return made


def _request_in(arguments: tuple[Any, ...], values: dict[str, Any]) -> Any:
    """Return the request among the arguments of a view: the first, or the second one of a method."""
    for each in (*arguments[:2], values.get("request")):
        if isinstance(getattr(each, "_request", each), HttpRequest):
            return each
    raise TransactionMisused(
        "idempotent(...) has found no request among the arguments of a view: the view must receive it as its first argument"
    )


class _Operation:
    """One run of an operation of Django Ninja, whose function begins the transaction, and whose end commits it."""

    def __init__(self, view: Any, attempt: DjangoAttempt) -> None:
        self.view = view
        self._attempt = attempt

    def call(self, function: Callable[[], Any]) -> Any:
        """Run the operation's function. Authentication and validation were before."""
        self._attempt.open()
        try:
            return function()
        except Exception:
            self._attempt.roll_back()  # what Ninja makes of it is a response
            raise


def _tell_ninja(served: Any, rules: DjangoRules) -> None:
    """Have Django Ninja enclose the operation that it makes of a function: only there the response is complete."""
    if "ninja" not in sys.modules:
        return
    from ninja.decorators import decorate_view  # noqa: PLC0415 - only where Django Ninja is used

    def enclose(run: Any) -> Any:
        def serve_sync(request: Any, call: Callable[[], Any]) -> Any:
            def respond(attempt: DjangoAttempt) -> HttpResponse:
                request.META[_OPERATION] = _Operation(served, attempt)
                try:
                    made: HttpResponse = call()
                    return made
                finally:
                    del request.META[_OPERATION]

            if request.method in SAFE:
                return call()
            with served_once(request.META):
                return rules.serve(request, respond)

        if iscoroutinefunction(run):

            async def run_async(request: Any, **values: Any) -> Any:
                return await sync_to_async(serve_sync)(request, lambda: async_to_sync(run)(request, **values))

            return run_async

        def run_sync(request: Any, **values: Any) -> Any:
            return serve_sync(request, lambda: run(request, **values))

        return run_sync

    decorate_view(enclose)(served)
