"""Documents in an S3 bucket: one object each, written on the condition that it is still the one that was read."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from onceonly.adapters.aws.address import S3Address, read_s3
from onceonly.adapters.aws.client import AT_ONCE, Client, ServiceError, code_of, translated
from onceonly.adapters.aws.s3.client import (
    DEFINITE,
    LONGEST_ENCODED,
    OTHER_VERSION,
    check_bucket,
    check_conditions,
    create,
    list_names,
    opened,
)
from onceonly.documents.bulk import read_all, write_all
from onceonly.documents.limits import DOCUMENT_LIMITS, can_be_held, check_limits, shorter
from onceonly.ports.documents import Change, Document, Version
from onceonly.ports.environment import Clock

__all__ = ["S3Documents", "create", "open_documents"]

_LINE = len(uuid4().hex) + 1
_DELETED = 204  # S3's answer to a delete; whatever is between may say 200


class S3Documents:
    """Documents in one bucket, below a prefix; as many at the same time as the client has connections.

    An object is a line of 32 letters that no other write has, and then the body. S3's tag of an object's content, which the
    conditions of a write name, would come again with the same content; behind that line it never does, also not after a delete.
    It is the version.

    It needs the rights PutObject, GetObject, DeleteObject and ListBucket; without the last one S3 calls a missing object
    forbidden. Nothing expires here; a lifecycle rule of the bucket may remove what the names of keys tell apart.

    What the emulator of the tests does not show: S3's answer 409 when two conditional writes of one object meet (nothing was
    done: CommitFailed), and its strong consistency, which is S3's own promise. Services that only speak S3 may ignore
    conditions: `check` tries them.
    """

    def __init__(self, client: Client, place: S3Address) -> None:
        self._client, self._place = client, place
        self.limits = shorter(DOCUMENT_LIMITS["S3"], taken=len(place.prefix.encode()), encoded=LONGEST_ENCODED)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        wanted = list(dict.fromkeys(keys))
        found = await read_all(wanted, self._read, at_once=AT_ONCE)
        return {key: document for key, document in zip(wanted, found, strict=True) if document is not None}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        check_limits(changes, self.limits)
        return await write_all(changes, self._write, at_once=AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their encoded bytes. Raises CommitFailed, OutcomeUnknown."""
        return tuple(await list_names(self._client, self._place, prefix, after=after, limit=limit))

    async def check(self) -> tuple[str, ...]:
        """Make sure that there is a bucket, and that its service obeys conditions. Raises SetupError, RetryableError."""
        warnings = await check_bucket(self._client, self._place)
        await check_conditions(self._client, self._place)
        return warnings

    async def _read(self, key: str) -> Document | None:
        if not can_be_held(key, self.limits):
            return None
        with translated(f"reading from {self._place.bucket}", DEFINITE):
            try:
                answer = await self._client.get_object(Bucket=self._place.bucket, Key=self._place.key(key))
                async with answer["Body"] as stream:
                    content: bytes = await stream.read()
            except ServiceError as error:
                if code_of(error) == "NoSuchKey":
                    return None
                raise
            return Document(body=_body(content), version=answer["ETag"])

    async def _write(self, change: Change) -> Version | None:
        with translated(f"writing to {self._place.bucket}", DEFINITE):
            try:
                return await self._send(change)
            except ServiceError as error:
                if code_of(error) in OTHER_VERSION:
                    return None
                raise

    async def _send(self, change: Change) -> Version | None:
        place = {"Bucket": self._place.bucket, "Key": self._place.key(change.key)}
        if change.body is None:
            if not change.expected:
                return "" if await self._read(change.key) is None else None
            answer = await self._client.delete_object(**place, IfMatch=change.expected)
            if answer["ResponseMetadata"]["HTTPStatusCode"] != _DELETED:
                raise ValueError("the response is not from S3")
            return ""
        condition = {"IfMatch": change.expected} if change.expected else {"IfNoneMatch": "*"}
        content = b"%s\n%s" % (uuid4().hex.encode(), change.body)
        answer = await self._client.put_object(**place, Body=content, ContentType="application/octet-stream", **condition)
        version: Version = answer["ETag"]
        return version


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock | None = None) -> AsyncIterator[S3Documents]:  # noqa: ARG001 - see below
    """Open the documents at `s3://bucket/prefix?region=...&endpoint=...&timeout=...`.

    `clock` is not used. Raises SetupError.
    """
    place = read_s3(url)
    async with opened(place) as client:
        yield S3Documents(client, place)


def _body(content: bytes) -> bytes:
    if content[_LINE - 1 : _LINE] != b"\n":
        raise ValueError("this object is not a document of onceonly: use a separate prefix for documents")
    return content[_LINE:]
