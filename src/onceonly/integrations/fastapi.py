"""For FastAPI: `lifespan`, a class of routes that handle each request once, and `Tx`, which injects the transaction."""

import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, ClassVar, Self

from onceonly.endpoint import Endpoint, Transaction
from onceonly.model.errors import DriverMissing, SetupError
from onceonly.model.transaction import LONGEST_KEY

try:
    from fastapi import Depends, Header
    from fastapi.dependencies.models import Dependant
    from fastapi.dependencies.utils import get_dependant
    from fastapi.routing import APIRoute
    from starlette.requests import Request
    from starlette.responses import Response

    from onceonly.integrations.idempotency_keys import KEY_HEADER, KEY_PATTERN
    from onceonly.integrations.problems import described
    from onceonly.integrations.request_rules import SAFE, is_final
    from onceonly.integrations.requests import Principal, RequestTerms, attempt_of, by_authorization, transaction_of
    from onceonly.integrations.starlette import lifespan
except ModuleNotFoundError as error:
    raise DriverMissing("fastapi is not installed: pip install 'onceonly[fastapi]'") from error

__all__ = ["IdempotentRoute", "Tx", "lifespan", "transaction"]

_OPENING = "onceonly_opening"
_KEY = Header(
    alias=KEY_HEADER,
    description="Identifies this request: a new string for each new request, the same string when the request is repeated.",
    json_schema_extra={
        "pattern": KEY_PATTERN,
        "minLength": 1,
        "maxLength": LONGEST_KEY,
    },  # checked when it is read, with a problem
)
_DETAIL = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}
_UNREADABLE = {"application/json": {"schema": _DETAIL}}
"""What FastAPI itself answers with status 400: the body cannot be parsed."""


async def transaction(request: Request) -> Transaction:
    """Return the request's open transaction. Use it as a dependency of endpoints or of other dependencies.

    Raises TransactionMisused.
    """
    return await transaction_of(request)


Tx = Annotated[Transaction, Depends(transaction)]
"""The annotation that injects the transaction into an endpoint or a dependency: `async def place(order: Order, tx: Tx)`."""


async def _take_part(request: Request, _key: Annotated[str | None, _KEY] = None) -> None:
    """Open the transaction of a request whose endpoint does not ask for it; and describe the header."""
    if (attempt := attempt_of(request)) is not None:
        await attempt.transaction()


async def _take_part_with_key(request: Request, _key: Annotated[str, _KEY]) -> None:
    """Return the same where every request must have a key. One without was answered before."""
    await _take_part(request)


class IdempotentRoute(APIRoute):
    """A route that handles each request once: `APIRouter(route_class=IdempotentRoute.of(shop))`.

    Dependencies that do not use the transaction run first, such as authentication. Then the transaction is opened. A request
    that was handled before gets the stored response. The endpoint's result is committed with the transaction before the first
    byte is sent. An exception rolls the transaction back. Requests with a safe method, such as GET, are passed through.
    Raises SetupError for an endpoint that cannot take part.
    """

    _terms: ClassVar[RequestTerms | None] = None

    @classmethod
    def of(  # noqa: PLR0913 - one parameter for each option
        cls,
        endpoint: Endpoint,
        *,
        key_required: bool = True,
        principal: Principal = by_authorization,
        scope: Principal | None = None,
        max_body: int = 1 << 20,
        wait: float = 2.0,
        max_commit: timedelta | None = None,
        fingerprint: Callable[[Request, bytes], bytes | str] | None = None,
        store_if: Callable[[int], bool] = is_final,
    ) -> type[Self]:
        """Return the class of routes for the transactions of an endpoint.

        * `key_required`: whether a request must have a key. One without is a transaction that is not deduplicated.
        * `principal`: returns the principal of a request, such as a user. The key of another principal is refused.
        * `scope`: returns the space of a key, such as a tenant. The same key in another scope is another key.
        * `max_body`: bytes of a request's body.
        * `wait`: seconds to wait for another request with the same key.
        * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
        * `fingerprint`: returns bytes or text of a request and its body. It replaces the comparison of query and body.
        * `store_if`: returns whether a response with this status is stored. If not, the transaction is rolled back, and the key
          is free. Default: all but 408, 423, 425, 429 and 5xx. A 5xx is never stored.

        Raises TransactionMisused for durations that no transaction can have.
        """
        terms = RequestTerms(
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
        return type(cls.__name__, (cls,), {"_terms": terms})

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = {method.upper() for method in options.get("methods") or ["GET"]}
        if not methods <= SAFE:
            if self._terms is None:
                raise SetupError(f"{path}: IdempotentRoute has no endpoint: use route_class=IdempotentRoute.of(shop)")
            is_optional = methods & SAFE or not self._terms.key_required
            endpoint = _taking_part(path, endpoint, _take_part if is_optional else _take_part_with_key)
        super().__init__(path, endpoint, **options)
        if self._terms is not None and not methods <= SAFE:
            self._describe(described(key_required=self._terms.key_required))

    def _describe(self, problems: dict[str, dict[str, Any]]) -> None:
        """Describe these responses in addition to the route's own, of which nothing is replaced."""
        if self.body_field is not None:
            problems["400"]["content"] |= _UNREADABLE
        extra = self.openapi_extra or {}
        responses: dict[str, Any] = extra.get("responses") or {}
        own = {str(status): response for status, response in self.responses.items()}
        for status, problem in problems.items():
            given = responses.get(status, {})
            named = {name: value for name, value in own.get(status, {}).items() if name == "description"}
            content = problem["content"] | given.get("content", {})
            responses = responses | {status: problem | named | given | {"content": content}}
        self.openapi_extra = extra | {"responses": responses}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Handle each unsafe request once, and pass safe ones through."""
        plain, terms = super().get_route_handler(), self._terms

        async def serve(request: Request) -> Response:
            if terms is None or request.method in SAFE:
                return await plain(request)
            return await terms.serve(request, plain)

        return serve


def _taking_part(path: str, endpoint: Callable[..., Any], opener: Callable[..., Any]) -> Callable[..., Any]:
    """Return an endpoint whose last parameter has the transaction opened, if nothing before did.

    FastAPI solves dependencies in the order of the parameters: those that use the transaction are put behind the others.
    """
    if not inspect.iscoroutinefunction(endpoint):
        raise SetupError(
            f"{path}: {getattr(endpoint, '__name__', endpoint)} must be an `async def` that returns its response, because a"
            " transaction belongs to one task and ends before the response is sent"
        )
    signature = inspect.signature(endpoint)
    if _OPENING in signature.parameters:
        return endpoint  # a router that is included may make its routes anew

    @wraps(endpoint)
    async def serve(**values: Any) -> Any:
        del values[_OPENING]
        return await endpoint(**values)

    late = {each.name for each in get_dependant(path=path, call=endpoint).dependencies if _uses_transaction(each)}
    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    parameters.sort(key=lambda each: each.name in late)
    opening = Parameter(_OPENING, Parameter.KEYWORD_ONLY, annotation=Annotated[None, Depends(opener)])
    vars(serve)["__signature__"] = signature.replace(parameters=[*parameters, opening])
    return serve


def _uses_transaction(dependant: Dependant) -> bool:
    """Return whether a dependency, or one of its own, opens the transaction."""
    return dependant.call is transaction or any(map(_uses_transaction, dependant.dependencies))
