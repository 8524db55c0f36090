"""The management HTTP API of RabbitMQ, as far as AMQP has no call for it: it lists the bindings of a queue.

Only `onceonly status` uses it, if the URL of the transport has the option `management`. No redirect is followed, because a
request carries the user's password.
"""

import asyncio
import ssl
from base64 import b64encode
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec
from msgspec import Struct

from onceonly.adapters.rabbitmq.address import RabbitMQAddress
from onceonly.model.errors import CommitFailed, SetupError

MOST_BYTES = 16 * 1024 * 1024
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 200, 401, 403, 404


class Binding(Struct, frozen=True):
    """One binding of a queue; the source is the exchange, empty for the default exchange."""

    source: str


_decode = msgspec.json.Decoder(list[Binding]).decode


async def sources(address: RabbitMQAddress, queue: str) -> frozenset[str]:
    """Return the exchanges that a queue is bound to; none if the queue does not exist.

    Raises CommitFailed if the API does not answer, SetupError if it refuses the user.
    """
    status, body = await asyncio.to_thread(_get, address, queue)
    if status == _NOT_FOUND:
        return frozenset()
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        raise SetupError(
            f"the management API at {address.management} refuses the user of the transport URL: give it the tag `management`"
        )
    if status != _OK:
        raise CommitFailed(f"the management API at {address.management} answered with status {status}")
    try:
        return frozenset(binding.source for binding in _decode(body) if binding.source)
    except msgspec.DecodeError as error:
        raise CommitFailed(f"the answer of {address.management} is not a list of bindings: {error}") from error


def _get(address: RabbitMQAddress, queue: str) -> tuple[int, bytes]:
    api, server = urlsplit(address.management), urlsplit(address.url)
    host = unquote(server.path[1:]) or "/"
    path = f"{api.path.rstrip('/')}/api/queues/{quote(host, safe='')}/{quote(queue, safe='')}/bindings"
    user, password = unquote(server.username or "guest"), unquote(server.password or "guest")
    token = b64encode(f"{user}:{password}".encode()).decode()
    connection = (
        HTTPSConnection(api.hostname or "", api.port, timeout=address.timeout, context=_tls(server.query))
        if api.scheme == "https"
        else HTTPConnection(api.hostname or "", api.port, timeout=address.timeout)
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {token}", "Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(MOST_BYTES)
    except (OSError, HTTPException) as error:
        raise CommitFailed(f"cannot reach the management API at {address.management}: {error}") from error
    finally:
        connection.close()


def _tls(query: str) -> ssl.SSLContext:
    options = dict(parse_qsl(query))
    context = ssl.create_default_context(cafile=options.get("cafile"), capath=options.get("capath"))
    if "certfile" in options:
        context.load_cert_chain(options["certfile"], options.get("keyfile"))
    if options.get("no_verify_ssl") == "1":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
