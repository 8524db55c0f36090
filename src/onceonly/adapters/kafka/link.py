"""Kafka: one producer that a process shares, the topics that exist, and what the broker's errors mean.

The driver is aiokafka. It connects again after an outage, and repeats what was not confirmed, in order, for `timeout` seconds.
A repetition may store a record twice, as a repeated dispatch may: both have one id.
"""

import asyncio
import random as shuffling
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.errors import (  # type: ignore[import-untyped]
    AuthenticationFailedError,
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedForMessageFormatError,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest  # type: ignore[import-untyped]

from onceonly.adapters.kafka.address import HEADER_BYTES, KafkaAddress
from onceonly.adapters.kafka.wire import KafkaRecord
from onceonly.model.errors import CommitFailed, OnceOnlyError, SetupError
from onceonly.ports.environment import RandomSource
from onceonly.queues.destinations import CopyOutcome
from onceonly.queues.names import tls_context
from onceonly.queues.reconnection import Reconnection

CONNECT_SECONDS = 10.0  # for an attempt, or less by `timeout=`
CLOSE_SECONDS = 5.0  # for the records of callers that were cancelled
_REFUSED = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    UnsupportedForMessageFormatError,
)
"""What the broker answers for a record that it never takes."""
_FORBIDDEN = (ClusterAuthorizationFailedError, TopicAuthorizationFailedError)
_REJECTED = (AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError)


class KafkaLink:
    """The producer for one cluster, shared by what a process has there; see `Reconnection`."""

    def __init__(self, address: KafkaAddress, random: RandomSource) -> None:
        self.address = address
        self._reconnection = Reconnection(self._connect, KafkaConnection.close, random)

    async def connection(self) -> "KafkaConnection":
        """Connect if need be. Raises CommitFailed when the brokers are away, SetupError when one refuses."""
        made = asyncio.ensure_future(self._reconnection.get())  # a caller that is cancelled leaves no half-open connection
        made.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(made)

    async def close(self) -> None:
        await self._reconnection.close()

    async def _connect(self) -> "KafkaConnection":
        address = self.address
        connection = KafkaConnection(address)
        try:
            async with asyncio.timeout(min(address.timeout, CONNECT_SECONDS)):
                await connection.open()
        except TimeoutError:
            problem: BaseException | str = "no answer"
        except _REJECTED as error:
            await connection.close()
            raise SetupError(f"cannot connect to {address.place}: the broker rejected this user or password") from error
        except (KafkaError, OSError) as error:
            problem = error
        else:
            return connection
        await connection.close()
        raise CommitFailed(f"cannot connect to {address.place}: {problem}. Check its brokers, user, password and TLS")


class KafkaConnection:
    """A started producer."""

    is_open = True  # it connects again by itself

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._producer = _producer(address)

    async def open(self) -> None:
        """Find the cluster. Raises what the driver raises."""
        await self._producer.start()

    async def close(self) -> None:
        """Send what is in flight, and disconnect."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._producer.stop()
        except TimeoutError:  # an outage: what is not confirmed stays a record in the store
            await self._producer._sender.close()  # noqa: SLF001 - the driver has no close that does not wait
            await self._producer.client.close()

    async def find(self, topics: Iterable[str]) -> Mapping[str, bool | OnceOnlyError]:
        """Return which topics exist. It creates none, also where the broker creates topics by itself.

        The value of a topic that this user may not see is a SetupError. Raises CommitFailed when no broker answers.
        """
        request = MetadataRequest(sorted(set(topics)), allow_auto_topic_creation=False)
        answer = await self._ask(request)
        found = {topic: self._existence(topic, code) for code, topic, _, _ in answer.topics}
        gone = {topic for topic, exists in found.items() if exists is False}
        client = self._producer.client
        if gone & client._topics:  # noqa: SLF001 - asking for a deleted topic may create it again
            client.set_topics(client._topics - gone)  # noqa: SLF001 - the same
        return found

    async def produce(self, records: Sequence[KafkaRecord]) -> list[CopyOutcome | OnceOnlyError]:
        """Send records, and wait until all replicas in sync have each one. Returns an outcome for each, in order."""
        waiting = []
        for record in records:
            try:
                waiting.append(
                    await self._producer.send(record.topic, value=record.body, key=record.key, headers=record.headers)
                )
            except (KafkaError, OSError, TimeoutError) as error:
                waiting.append(_failed(error))
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        return [self._outcome(record, outcome) for record, outcome in zip(records, outcomes, strict=True)]

    async def _ask(self, request: MetadataRequest) -> Any:
        client = self._producer.client
        nodes = [broker.nodeId for broker in client.cluster.brokers()]
        shuffling.shuffle(nodes)
        problem: BaseException | str = "no broker is known"
        for node in nodes:
            try:
                return await client.send(node, request)
            except (KafkaError, OSError, TimeoutError) as error:
                problem = error
        raise CommitFailed(f"no broker answers at {self._address.place}: {problem}") from (
            problem if isinstance(problem, BaseException) else None
        )

    def _existence(self, topic: str, code: int) -> bool | OnceOnlyError:
        error = for_code(code)
        if issubclass(error, _FORBIDDEN):
            return SetupError(f"topic {topic!r} at {self._address.place}: this user may not see it. Grant the permission")
        return not code or not (error is _UNKNOWN_TOPIC or issubclass(error, InvalidTopicError))

    def _outcome(self, record: KafkaRecord, outcome: object) -> CopyOutcome | OnceOnlyError:
        if not isinstance(outcome, BaseException):
            return CopyOutcome.TAKEN
        if isinstance(outcome, _REFUSED):
            return CopyOutcome.REFUSED
        if isinstance(outcome, _FORBIDDEN):
            return SetupError(f"cannot write to topic {record.topic!r}: this user may not. Grant the permission")
        if isinstance(outcome, (KafkaError, OSError, TimeoutError)):
            return CommitFailed(f"topic {record.topic!r} did not confirm: {_words(outcome)}")
        raise outcome


_UNKNOWN_TOPIC = for_code(3)


def _words(error: BaseException) -> str:
    known = str(error.description or "") if isinstance(error, BrokerResponseError) else ""
    return known or str(error) or type(error).__name__


def _failed(error: BaseException) -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _producer(address: KafkaAddress) -> AIOKafkaProducer:
    options: dict[str, Any] = {
        "security_protocol": f"{'SASL_' if address.user else ''}{'SSL' if address.secure else 'PLAINTEXT'}"
    }
    if address.secure:
        options["ssl_context"] = _context(address)
    if address.user:
        options |= {
            "sasl_mechanism": address.sasl,
            "sasl_plain_username": address.user,
            "sasl_plain_password": address.password,
        }
    return AIOKafkaProducer(
        bootstrap_servers=list(address.servers),
        client_id="onceonly",
        acks="all",
        max_request_size=address.max_body + HEADER_BYTES,
        request_timeout_ms=max(1, round(address.timeout * 1000)),
        **options,
    )


def _context(address: KafkaAddress) -> ssl.SSLContext:
    return tls_context(
        address.place,
        cafile=address.cafile,
        certfile=address.certfile,
        keyfile=address.keyfile,
        verifies=address.verifies,
    )
