"""For WSGI: `idempotent`, which makes an application handle each request once, and `transaction`, for its own work.

It works with each framework for WSGI, such as Bottle, Falcon and Pyramid. Flask has a module of its own.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import update_wrapper
from http import HTTPStatus
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from onceonly.endpoint import Endpoint
from onceonly.integrations.request_rules import SAFE, ReceivedRequest, is_final
from onceonly.integrations.session_requests import SessionRules, SessionServer
from onceonly.integrations.session_transactions import RequestTransaction, Sessions
from onceonly.integrations.stored_responses import IdempotencyResponse
from onceonly.integrations.wsgi_bodies import WsgiRecorder, key_lines, read_body, received_request, served_once
from onceonly.model.errors import TransactionMisused

__all__ = ["Principal", "RequestTransaction", "Sessions", "idempotent", "transaction"]

_TRANSACTION = "onceonly.transaction"
Principal = Callable[[WSGIEnvironment], str | None]
"""Returns the principal of a request by its environ, or the scope of its key."""


def by_authorization(environ: WSGIEnvironment) -> str | None:
    """Distinguish clients by the header `Authorization`, of which only a hash is stored."""
    found: str | None = environ.get("HTTP_AUTHORIZATION")
    return found


def transaction(environ: WSGIEnvironment) -> RequestTransaction:
    """Return the open transaction of a request. Raises TransactionMisused where there is none."""
    found = environ.get(_TRANSACTION)
    if not isinstance(found, RequestTransaction):
        method = environ.get("REQUEST_METHOD", "")
        why = "has no transaction: wrap the application in idempotent(...)"
        if method in SAFE:
            why = "is a safe method, so it has no transaction"
        raise TransactionMisused(f"{method} {environ.get('PATH_INFO', '')} {why}")
    return found


def idempotent(  # noqa: PLR0913 - one parameter for each option
    endpoint: Endpoint,
    sessions: Sessions,
    *,
    key_required: bool = True,
    principal: Principal = by_authorization,
    scope: Principal | None = None,
    max_body: int = 1 << 20,
    wait: float = 2.0,
    max_commit: timedelta | None = None,
    fingerprint: Callable[[WSGIEnvironment, bytes], bytes | str] | None = None,
    store_if: Callable[[int], bool] = is_final,
) -> Callable[[WSGIApplication], WSGIApplication]:
    """Make a WSGI application handle each request once: `@idempotent(shop, Session)`, or around that of a framework.

    `transaction(environ)` is the request's transaction. The response, status 2xx to 4xx, is committed with it before the first
    byte is sent, and returned to every retry with the same `Idempotency-Key`. An exception and a 5xx roll it back. Requests
    with a safe method, such as GET, are passed through.

    * `sessions`: a `sessionmaker`, a `scoped_session`, or a function that returns the session of the request. Its database is
      the endpoint's store.
    * `key_required`: whether a request must have a key. One without is a transaction that is not deduplicated.
    * `principal`: returns the principal of an environ, such as a user. The key of another principal is refused.
    * `scope`: returns the space of a key, such as a tenant. The same key in another scope is another key.
    * `max_body`: bytes of a request's body.
    * `wait`: seconds to wait for another request with the same key.
    * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
    * `fingerprint`: returns bytes or text of an environ and its body. It replaces the comparison of query and body.
    * `store_if`: returns whether a response with this status is stored. If not, the transaction is rolled back, and the key is
      free. Default: all but 408, 423, 425, 429 and 5xx. A 5xx is never stored.

    Messages are dispatched by a relay: `onceonly relay`, or any process in which the endpoint runs.

    Raises TransactionMisused for durations that no transaction can have, and SetupError for `sessions` that give none.
    """
    rules = SessionRules(
        endpoint=endpoint,
        sessions=sessions,
        key_required=key_required,
        principal=principal,
        scope=scope,
        max_body=max_body,
        wait=wait,
        max_commit=max_commit,
        fingerprint=fingerprint,
        store_if=store_if,
    )

    def decorate(application: WSGIApplication) -> WSGIApplication:
        def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] in SAFE:
                return application(environ, start_response)
            recorder = WsgiRecorder(getattr(application, "__name__", type(application).__name__))

            def respond(opened: RequestTransaction) -> IdempotencyResponse:
                environ[_TRANSACTION] = opened
                try:
                    return recorder.record(application, environ)
                finally:
                    del environ[_TRANSACTION]

            server = SessionServer[WSGIEnvironment, IdempotencyResponse](rules=rules, complete=lambda response: response)
            with served_once(environ):
                sent = server.serve(environ, lambda: _received(rules, environ), respond)
            start_response(_status_line(sent.status), _headers(sent))
            return [sent.body]

        return update_wrapper(serve, application, updated=())

    return decorate


def _received(rules: SessionRules[WSGIEnvironment], environ: WSGIEnvironment) -> ReceivedRequest:
    key = rules.key(key_lines(environ))
    return received_request(environ, key, read_body(environ, rules.max_body, rules.too_large))


def _status_line(status: int) -> str:
    """Return the status with the phrase of RFC 9110: the first response has the same as its repetitions."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def _headers(response: IdempotencyResponse) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers]
