"""Responses of Django as they are stored for a client's key, and given to every retry."""

from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpResponse

from onceonly.integrations.stored_responses import IdempotencyResponse, endless
from onceonly.integrations.wsgi_bodies import WsgiRecorder
from onceonly.model.errors import TransactionMisused


def complete(response: Any) -> tuple[HttpResponse, IdempotencyResponse]:
    """Return the response with all of its body, and what is stored of it. A template is rendered, a stream is read.

    Raises TransactionMisused for what cannot be stored.
    """
    if not hasattr(response, "status_code"):
        raise TransactionMisused(
            f"a view of idempotent(...) has returned {type(response).__name__}, which is not a response of Django"
        )
    if not getattr(response, "is_rendered", True):
        response = response.render()
    if response.streaming:
        response = _recorded(response)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    return response, IdempotencyResponse(response.status_code, tuple(headers), response.content)


def response_of(stored: IdempotencyResponse) -> HttpResponse:
    """Return a response of Django."""
    made = HttpResponse(stored.body, status=stored.status)
    del made["Content-Type"]
    for name, value in stored.headers:
        made[name.decode("latin-1")] = value.decode("latin-1")
    return made


def _recorded(response: Any) -> HttpResponse:
    """Return a response with the body that another one streams."""
    name = f"streamed {type(response).__name__}"
    if response.get("Content-Type", "").startswith("text/event-stream"):
        raise endless(name)
    recorder = WsgiRecorder(name)
    recorder.extend(async_to_sync(_parts)(response) if response.is_async else response.streaming_content)
    made = HttpResponse(recorder.body, status=response.status_code, headers=dict(response.items()))
    made.cookies = response.cookies
    made._resource_closers = response._resource_closers  # noqa: SLF001 - `response.close` would end the request
    return made


async def _parts(response: Any) -> list[bytes]:
    return [part async for part in response]
