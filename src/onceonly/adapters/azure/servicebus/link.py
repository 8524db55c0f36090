"""The clients of one namespace, shared by what a process has there: senders by entity, and what errors of the SDK mean."""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import certifi
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from onceonly.adapters.azure.client import default_credential
from onceonly.adapters.azure.servicebus.address import MOST_IN_A_BATCH, ServiceBusAddress
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, QueueMissing, SetupError
from onceonly.model.record import Answer

LOST: tuple[type[Exception], ...] = (AzureError, AMQPException, *DRIVER_FAULTS)
MOST_SENDERS = 50
"""Entities that are sent to without a new connection. The SDK opens one for each."""
CLOSE_SECONDS = 5.0
_NOT_STORED = (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    MessagingEntityDisabledError,
)
"""What the service answers for a message that it has not stored."""
_CONNECTIONS = "_onceonly_made"
_MISSING, _NOT_FOUND = "amqp:not-found", 404


class EntityMissing(Exception):
    """The entity does not exist."""


class ServiceBusLink:
    """Clients of one namespace. They connect when they are used."""

    def __init__(self, address: ServiceBusAddress) -> None:
        self.address = address
        self._client: ServiceBusClient | None = None
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    @property
    def client(self) -> ServiceBusClient:
        """The client of the namespace. Raises DriverMissing."""
        if self._client is None:
            self._client = _client(self.address)
        return self._client

    def receiver(self, queue: str, **options: Any) -> ServiceBusReceiver:
        """Make a receiver that is not open. Its link has no credit when it opens."""
        receiver = self.client.get_queue_receiver(queue, client_identifier=None, **options)
        _open_without_pauses(receiver, receives=True)
        return receiver

    async def send(self, entity: str, messages: Sequence[ServiceBusMessage]) -> list[Answer]:
        """Send messages to a queue or a topic, in as few batches as they fit in. Return an answer for each.

        Raises EntityMissing, CommitFailed if none was sent, SetupError.
        """
        answers = await self._sender(entity).send(messages)
        while len(self._senders) > MOST_SENDERS:
            _, oldest = self._senders.popitem(last=False)
            await oldest.close()
        return answers

    async def find(self, queue: str) -> None:
        """Connect to a queue. Raises QueueMissing, CommitFailed, SetupError."""
        try:
            await self._sender(queue).send(())
        except EntityMissing as error:
            raise translated(error, f"receive from queue {queue!r}") from error

    def _sender(self, entity: str) -> "_Sender":
        sender = self._senders.get(entity)
        if sender is None:
            opened = self.client.get_queue_sender(entity)
            _open_without_pauses(opened, receives=False)
            sender = self._senders[entity] = _Sender(opened, self.address)
        self._senders.move_to_end(entity)
        return sender

    async def close(self) -> None:
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))
        self._senders.clear()
        if self._client is not None:
            await self._client.close()
            credential, self._client = self._client._credential, None
            if hasattr(credential, "close"):
                await credential.close()


class _Sender:
    def __init__(self, sender: ServiceBusSender, address: ServiceBusAddress) -> None:
        self._sender = sender
        self._address = address
        self._lock = asyncio.Lock()

    async def send(self, messages: Sequence[ServiceBusMessage]) -> list[Answer]:
        """Send in order. After an unknown outcome, the others of the call are not sent: their outcome is unknown too."""
        async with self._lock:
            await self._open()
            answers: list[Answer] = []
            while len(answers) < len(messages):
                rest = messages[len(answers) :]
                batch, count = await self._batch(rest)
                try:
                    await self._send(batch if count else rest[0])
                except MessageSizeExceededError:
                    answers.append(Answer.REFUSED)
                except LOST as error:
                    if is_missing(error):
                        raise EntityMissing(str(error)) from error
                    if isinstance(error, ServiceBusQuotaExceededError):  # of this entity, and not of the namespace
                        return answers + [Answer.UNKNOWN] * (len(messages) - len(answers))
                    if isinstance(error, _NOT_STORED) and Answer.TAKEN not in answers:
                        raise translated(error, f"send to {self._address.place}", definite=True) from error
                    return answers + [Answer.UNKNOWN] * (len(messages) - len(answers))
                else:
                    answers += [Answer.TAKEN] * max(count, 1)
            return answers

    async def close(self) -> None:
        await close(self._sender)

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._address.timeout):
                await self._sender.__aenter__()
        except LOST as error:
            if is_missing(error):
                raise EntityMissing(str(error)) from error
            raise translated(error, f"connect to {self._address.place}", definite=True) from error

    async def _batch(self, messages: Sequence[ServiceBusMessage]) -> tuple[ServiceBusMessageBatch, int]:
        """Fill a batch; return how many messages are in it. None: the first is larger than a batch."""
        batch = await self._sender.create_message_batch()
        count = 0
        for message in messages[:MOST_IN_A_BATCH]:
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                break
            count += 1
        return batch, count

    async def _send(self, what: ServiceBusMessage | ServiceBusMessageBatch) -> None:
        """Send once more, on a new connection, if the first was closed meanwhile: the copy is handled once."""
        for last in (False, True):
            try:
                async with asyncio.timeout(self._address.timeout):
                    await self._sender.send_messages(what)
            except LOST as error:
                if last or is_missing(error) or isinstance(error, (*_NOT_STORED, MessageSizeExceededError, TimeoutError)):
                    raise
            else:
                return


def _open_without_pauses(owner: Any, *, receives: bool) -> None:
    """Open a sender or a receiver of the SDK without its pauses. It sleeps for 50 ms after each frame, half a second in all.

    A link that receives asks for one message when it opens. It would be held by a process that does not wait for it.
    """
    create = owner._create_handler
    made: list[Any] = []
    setattr(owner, _CONNECTIONS, made)

    def create_handler(auth: Any) -> None:
        create(auth)
        handler = owner._handler
        if receives:
            handler._link_credit = 0
            owner._receive_context.set()  # else the SDK releases what comes
        if receives and owner._session is not None:
            handler._keep_alive_interval = 0  # it is used all the time, and the SDK would wait for a task when it closes
        opens, is_ready = handler.open_async, handler.client_ready_async

        async def open_connection(connection: Any = None) -> None:
            if handler._session is not None:
                return  # it is open; the SDK asks often
            await _abandon(made)
            try:
                await opens(connection)
            finally:
                if handler._connection is not None:
                    made.append(handler._connection)

        async def ready() -> bool:
            while not await is_ready():
                await asyncio.sleep(0)
                if is_cancelled():  # the SDK uses `wait_for`, which loses it in Python 3.11 if a frame comes at the same time
                    raise asyncio.CancelledError
            return True

        handler.open_async, handler.client_ready_async = open_connection, ready

    owner._create_handler = create_handler


def translated(error: Exception, what: str, *, definite: bool = False) -> OnceOnlyError:
    """Translate an error of the SDK. `definite` means that nothing can have happened that matters."""
    if isinstance(error, OnceOnlyError):
        return error
    text = f"cannot {what}: {error}"
    if is_missing(error):
        return QueueMissing(f"{text}. Run `onceonly topology create module:endpoint`, or start its endpoint")
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return SetupError(f"{text}. Check the key of the URL, or the roles of the identity, and its rights to send and listen")
    definite = definite or isinstance(error, _NOT_STORED)
    return (CommitFailed if definite and not isinstance(error, OperationTimeoutError) else OutcomeUnknown)(text)


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_missing(error: BaseException) -> bool:
    """Return whether the service has no such entity: it refuses the link, or the token for it."""
    inner = getattr(error, "inner_exception", None)
    status = getattr(inner, "status_code", None)
    return isinstance(error, MessagingEntityNotFoundError | EntityMissing) or _MISSING in str(error) or status == _NOT_FOUND


async def close(handler: ServiceBusSender | ServiceBusReceiver) -> None:
    """Close a sender or a receiver, for a few seconds at most."""
    inner: Any = handler._handler
    beating = getattr(inner, "_keep_alive_thread", None)
    if beating is not None:
        inner._keep_alive_thread = None  # the SDK would wait a second for it
        beating.cancel()
    with suppress(*LOST, ServiceBusError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await handler.close()
    await _abandon(getattr(handler, _CONNECTIONS, []))


async def _abandon(connections: list[Any]) -> None:
    """Close the sockets of connections. The SDK leaves those open that fail while they are opened or closed."""
    while connections:
        with suppress(*LOST):
            await connections.pop()._transport.close()


def _client(address: ServiceBusAddress) -> ServiceBusClient:
    options: dict[str, Any] = {"retry_total": 0, "socket_timeout": 1.0, "logging_enable": False}
    # The SDK would read the certificates once for each connection, which takes longer than all the rest.
    options["ssl_context"] = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # an emulator has no TLS
        if address.emulator
        else ssl.create_default_context(cafile=certifi.where())
    )
    if address.emulator:
        return ServiceBusClient.from_connection_string(connection_string(address), **options)
    if address.key_name:
        credential: Any = AzureNamedKeyCredential(address.key_name, address.key)
        return ServiceBusClient(address.host, credential, **options)
    return ServiceBusClient(address.host, identity_credential(address), **options)


def connection_string(address: ServiceBusAddress) -> str:
    text = f"Endpoint=sb://{address.host}/;SharedAccessKeyName={address.key_name};SharedAccessKey={address.key}"
    return text + ";UseDevelopmentEmulator=true" * address.emulator


def identity_credential(address: ServiceBusAddress) -> Any:
    """Return what azure-identity finds. Raises DriverMissing."""
    return default_credential(f"no key for {address.place}: write servicebus://KEYNAME:KEY@...")
