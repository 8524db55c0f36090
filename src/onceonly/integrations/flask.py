"""For Flask: `idempotent`, a decorator of views whose requests are handled once, in the application's own session."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from onceonly.endpoint import Endpoint
from onceonly.model.errors import CommitRefused, DriverMissing, OnceOnlyError, SetupError, TransactionMisused

try:
    from flask import Request, Response, current_app, request
    from flask.typing import ResponseReturnValue
except ModuleNotFoundError as missing:
    raise DriverMissing("flask is not installed: pip install 'onceonly[flask]'") from missing

from onceonly.integrations.request_rules import ReceivedRequest, is_final
from onceonly.integrations.session_requests import SessionRules, SessionServer
from onceonly.integrations.session_transactions import RequestTransaction, Sessions
from onceonly.integrations.stored_responses import IdempotencyResponse, endless
from onceonly.integrations.wsgi_bodies import WsgiRecorder, key_lines, read_body, received_request, served_once

__all__ = ["Principal", "RequestTransaction", "Sessions", "View", "idempotent"]

View = Callable[..., ResponseReturnValue]
"""A view, which receives the open transaction as `tx`."""
Principal = Callable[[Request], str | None]
"""Returns the principal of a request, or the scope of its key."""


def by_authorization(asked: Request) -> str | None:
    """Distinguish clients by the header `Authorization`, of which only a hash is stored."""
    return asked.headers.get("authorization")


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
    fingerprint: Callable[[Request, bytes], bytes | str] | None = None,
    store_if: Callable[[int], bool] = is_final,
) -> Callable[[View], View]:
    """Make a view handle each request once: `@idempotent(shop, Session)` between `@app.post(...)` and `def place(tx)`.

    The view receives the open transaction as `tx`. What it returns is committed with the rows of `tx.sql` and the messages of
    `tx.send` and `tx.publish` before the first byte is sent, and returned to every retry with the same `Idempotency-Key`. An
    exception, also `abort(404)`, rolls the transaction back. The view does not commit.

    * `sessions`: a `sessionmaker`, a `scoped_session` such as `db.session`, or a function that returns the session of the
      request. Its database is the endpoint's store.
    * `key_required`: whether a request must have a key. One without is a transaction that is not deduplicated.
    * `principal`: returns the principal of a request, such as a user. The key of another principal is refused.
    * `scope`: returns the space of a key, such as a tenant. The same key in another scope is another key.
    * `max_body`: bytes of a request's body.
    * `wait`: seconds to wait for another request with the same key.
    * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
    * `fingerprint`: returns bytes or text of a request and its body. It replaces the comparison of query and body.
    * `store_if`: returns whether a response with this status is stored. If not, the transaction is rolled back, and the key is
      free. Default: all but 408, 423, 425, 429 and 5xx. A 5xx is never stored.

    Messages are dispatched by a relay: `onceonly relay`, or any process in which the endpoint runs.

    Raises TransactionMisused for durations that no transaction can have, and SetupError for `sessions` that give none, and for
    an `async def` view.
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
    server = SessionServer[Request, Response](rules=rules, complete=_complete, is_handled=_is_handled)

    def decorate(view: View) -> View:
        if inspect.iscoroutinefunction(view):
            raise SetupError(f"{view.__name__} must be a `def`, because it works in a synchronous session")

        @wraps(view)
        def serve(*arguments: Any, **values: Any) -> Response:
            def respond(tx: RequestTransaction) -> Response:
                return current_app.make_response(view(*arguments, **values, tx=tx))

            asked: Request = request._get_current_object()  # type: ignore[attr-defined] # noqa: SLF001 - the documented way
            with served_once(asked.environ):
                sent = server.serve(asked, lambda: _received(rules, asked), respond)
            return _response(sent) if isinstance(sent, IdempotencyResponse) else sent

        return serve

    return decorate


def _received(rules: SessionRules[Request], asked: Request) -> ReceivedRequest:
    """Read the request. Raises RequestProblem, and TransactionMisused if something has read its body and left nothing."""
    key = rules.key(key_lines(asked.environ))
    if "stream" not in vars(asked):  # Flask has not begun to read it
        body = read_body(asked.environ, rules.max_body, rules.too_large)
        return received_request(asked.environ, key, body)
    length, body = asked.content_length, asked.get_data()
    if not body and (length or (length is None and "HTTP_TRANSFER_ENCODING" in asked.environ)) and rules.fingerprint is None:
        raise TransactionMisused(
            "the body of this request was read before its view, such as by request.form in before_request. It cannot be "
            "compared with that of a repetition: call request.get_data() before, or set fingerprint="
        )
    if len(body) > rules.max_body:
        raise rules.too_large()
    return received_request(asked.environ, key, body)


def _complete(response: Response) -> IdempotencyResponse:
    """Return what is sent, and make a response that streams its body a complete one.

    A reason phrase of the application is replaced by the standard one: it is not stored, and repetitions have that one.
    """
    response.status_code = response.status_code
    if response.is_streamed or response.direct_passthrough:
        name = f"streamed {type(response).__name__}"
        if response.mimetype == "text/event-stream":
            raise endless(name)
        recorder = WsgiRecorder(name)
        try:
            recorder.extend(response.iter_encoded())
        finally:
            close = getattr(response.response, "close", None)
            if close is not None:
                close()
        response.direct_passthrough = False
        response.set_data(recorder.body)
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers)
    return IdempotencyResponse(response.status_code, headers, response.get_data())


def _response(stored: IdempotencyResponse) -> Response:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in stored.headers]
    made = current_app.response_class(stored.body, status=stored.status)
    made.headers.clear()
    made.headers.extend(headers)
    return made


def _is_handled(error: CommitRefused) -> bool:
    """Return whether the application has a handler of its own for this exception."""
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, OnceOnlyError)]
    for name in (*request.blueprints, None):
        handlers = current_app.error_handler_spec.get(name, {}).get(None, {})
        if any(kind in handlers for kind in kinds):
            return True
    return False
