"""SQS and SNS: clients that the endpoints of a process share, where a queue is, and what errors mean."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from onceonly.adapters.aws.client import NOT_ALLOWED, Client, DefiniteError, ServiceError, code_of, connected, translated
from onceonly.adapters.aws.sqs.address import SqsAddress, SqsNames
from onceonly.adapters.aws.sqs.wire import SqsArrival, read
from onceonly.model.errors import SetupError
from onceonly.queues.messages import queue_missing

LONGEST_POLL_SECONDS = 20
"""For which SQS keeps a request for messages, at most."""
SYSTEM_ATTRIBUTES = ("ApproximateReceiveCount", "MessageDeduplicationId", "MessageGroupId")
MOST_POLLS = 1000
"""Requests for messages under way at the same time."""
DEFINITE = DefiniteError(
    failed=frozenset(
        {
            "AWS.SimpleQueueService.QueueDeletedRecently",
            "AuthorizationError",
            "AuthorizationErrorException",
            "KMSThrottling",
            "KMSThrottlingException",
            "KmsThrottled",
            "NotFound",
            "OverLimit",
            "QueueDeletedRecently",
            "RequestThrottled",
            "Throttled",
            "ThrottledException",
            "Throttling",
            "ThrottlingException",
        }
    ),
)
REFUSED = frozenset(
    {
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "InvalidParameter",
        "InvalidParameterCombination",
        "InvalidParameterException",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "MissingParameter",
        "ParameterValueInvalid",
        "UnsupportedOperation",
    }
)
"""What is said of a message that can never be taken."""
MISSING_QUEUE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
MISSING_TOPIC = frozenset({"NotFound", "NotFoundException"})
_FAMILY = "AWS.SimpleQueueService."


class SqsLink:
    """The clients of one URL. `polls` is for requests that wait for messages, so that they keep no other request waiting."""

    def __init__(self, address: SqsAddress, *, sqs: Client, polls: Client, sns: Client, stack: AsyncExitStack) -> None:
        self.address = address
        self.names = SqsNames(address.prefix, address.fifo)
        self.sqs, self.polls, self.sns = sqs, polls, sns
        self.counts: dict[str, tuple[float, int]] = {}
        """How many subscriptions an event type has, and until when that is believed."""
        self._stack = stack
        self._urls: dict[str, str] = {}
        self._scope = ""
        self._account_lock = asyncio.Lock()

    @classmethod
    async def open(cls, address: SqsAddress) -> "SqsLink":
        """Create clients; connects to nothing. Raises SetupError."""
        async with AsyncExitStack() as stack:
            access = address.access
            sqs = await stack.enter_async_context(connected("sqs", access))
            wait = {"read_timeout": access.timeout + LONGEST_POLL_SECONDS, "max_pool_connections": MOST_POLLS}
            polls = await stack.enter_async_context(connected("sqs", access, **wait))
            sns = await stack.enter_async_context(connected("sns", access))
            return cls(address, sqs=sqs, polls=polls, sns=sns, stack=stack.pop_all())
        raise AssertionError  # the stack suppresses nothing

    async def close(self) -> None:
        await self._stack.aclose()

    async def url(self, name: str, account: str = "", *, fresh: bool = False) -> str | None:
        """Return the URL of a queue, None if it does not exist. It is remembered, unless `fresh`. Raises RetryableError."""
        key = f"{account}/{name}"
        if fresh or key not in self._urls:
            owner = {"QueueOwnerAWSAccountId": account} if account else {}
            with self.translated(f"look for the queue {name!r}"):
                try:
                    self._urls[key] = (await self.sqs.get_queue_url(QueueName=name, **owner))["QueueUrl"]
                except ServiceError as error:
                    if reason_of(error) in MISSING_QUEUE:
                        self._urls.pop(key, None)
                        return None
                    raise
        return self._urls[key]

    async def need(self, name: str) -> str:
        """Return the URL of a queue. Raises QueueMissing, RetryableError."""
        url = await self.url(name)
        if url is None:
            raise queue_missing(f"queue {name!r}")
        return url

    async def receive(self, name: str, limit: int, seconds: int) -> list[SqsArrival]:
        """Receive messages of a queue, at most `MOST_ENTRIES`; wait for some so long. Raises QueueMissing, RetryableError."""
        url = await self.need(name)
        with self.translated(f"receive from {name!r}"):
            try:
                answer = await self.polls.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=limit,
                    WaitTimeSeconds=seconds,
                    VisibilityTimeout=self.address.lease,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=list(SYSTEM_ATTRIBUTES),
                )
            except ServiceError as error:
                if reason_of(error) in MISSING_QUEUE:
                    self.forget(url)
                    raise queue_missing(f"queue {name!r}") from error
                raise
            return [read(message) for message in answer.get("Messages") or ()]

    def forget(self, url: str) -> None:
        self._urls = {key: known for key, known in self._urls.items() if known != url}

    async def attributes(self, url: str, *names: str) -> dict[str, str]:
        with self.translated(f"read the attributes of {url}"):
            try:
                answer = await self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))
            except ServiceError as error:
                if reason_of(error) in MISSING_QUEUE:
                    self.forget(url)
                    raise queue_missing(f"queue {url.rpartition('/')[2]!r}") from error
                raise
            return dict(answer.get("Attributes") or {})

    async def topic(self, kind: str) -> str:
        """Return the ARN of the topic of an event type, whether it exists or not. Raises RetryableError."""
        async with self._account_lock:
            if not self._scope:
                async with connected("sts", self.address.access) as sts:
                    with self.translated("look for the number of the account"):
                        found: dict[str, str] = await sts.get_caller_identity()
                        self.note_account(partition=found["Arn"].split(":")[1], account=found["Account"])
        return self._scope + self.names.topic(kind)

    def note_account(self, *, partition: str, account: str) -> None:
        """Remember whose queues and topics these are."""
        self._scope = f"arn:{partition}:sns:{self.address.access.region}:{account}:"

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Translate the driver's errors. Raises CommitFailed, OutcomeUnknown, and SetupError where a person must act."""
        with translated(f"cannot {what} at {self.address.place}", DEFINITE):
            try:
                yield
            except ServiceError as error:
                if reason_of(error) in _TO_CORRECT:
                    raise SetupError(f"cannot {what} at {self.address.place}: {_error_text(error)}") from error
                raise


_TO_CORRECT = NOT_ALLOWED | {"InvalidClientTokenId", "AuthorizationError", "AuthorizationErrorException"}


def reason_of(error: ServiceError) -> str:
    """Return the name of an error without the family that older versions of the protocol put before it."""
    return code_of(error).removeprefix(_FAMILY)


def _error_text(error: ServiceError) -> str:
    details: dict[str, Any] = error.response.get("Error", {})
    return f"{details.get('Message') or 'no reason given'} ({code_of(error)}). Grant the permission, or use other credentials"
