"""S3: where a bucket is, how keys are written in it, how it is made and proved, and what its errors mean."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote_to_bytes
from uuid import uuid4

from botocore.handlers import add_expect_header  # type: ignore[import-untyped]
from msgspec import Struct

from onceonly.adapters.aws.client import (
    Access,
    Client,
    Definite,
    ServiceError,
    code_of,
    connected,
    read_access,
    split_url,
    told_at_start,
    translated,
)
from onceonly.documents.limits import DOCUMENT_LIMITS
from onceonly.model.errors import SetupError

LONGEST_KEY = DOCUMENT_LIMITS["S3"].key  # bytes of UTF-8, as S3 counts them
LONGEST_ENCODED = 3  # bytes that one byte of a key may take
OPTIONS = ("region", "endpoint", "timeout")
DEFINITE = Definite(
    refused=frozenset({"EntityTooLarge", "KeyTooLongError", "InvalidRequest", "InvalidArgument"}),
    failed=frozenset({"ConditionalRequestConflict", "NoSuchBucket", "OperationAborted"}),
)
"""ConditionalRequestConflict: another write of the key was under way; this one was not carried out, and may be tried again."""
OTHER_VERSION = frozenset({"PreconditionFailed", "NoSuchKey"})
"""What a conditional write is told when the object is another one, or none."""
_MISSING = {"NoSuchBucket": "there is no such bucket; make it with `onceonly schema create module:endpoint`"}
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!*'()=,@:+$&; ")
_SLASH, _DOT, _SPACE = b"/. "


class S3Address(Struct, frozen=True, kw_only=True):
    """A bucket, and what every key in it begins with: empty, or ending in a slash."""

    access: Access
    bucket: str
    prefix: str = ""

    def key(self, name: str) -> str:
        """Write a name as an object's key: other than letters, digits and common marks, bytes become `%` and two digits.

        Also the first of `/`, `.` and space after a slash: proxies and SDKs tidy such paths up. Each name has a key of its own,
        and names that begin alike have keys that begin alike.
        """
        return self.prefix + encoded(name)

    def name(self, key: str) -> str:
        """Read a name from an object's key."""
        return unquote_to_bytes(key.removeprefix(self.prefix)).decode()


def encoded(name: str) -> str:
    """Write a name so that every service keeps it apart from every other name."""
    written: list[str] = []
    before = _SLASH
    for byte in name.encode():
        is_plain = byte in _PLAIN and not (before == _SLASH and byte in {_DOT, _SPACE})
        written.append(chr(byte) if is_plain or (byte == _SLASH != before) else f"%{byte:02X}")
        before = byte
    return "".join(written)


def read_url(url: str) -> S3Address:
    """Take `s3://bucket/prefix?region=...&endpoint=...` apart. Raises SetupError."""
    parts, options = split_url(url, "s3", OPTIONS)
    prefix = parts.path.strip("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.hostname or ""):
        raise SetupError("an S3 URL names a bucket, as in s3://my-bucket/onceonly")
    if (
        not re.fullmatch(r"([A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*)?", prefix)
        or len(prefix) > LONGEST_KEY // 8
    ):
        raise SetupError(f"prefix {prefix!r}: write at most {LONGEST_KEY // 8} letters, digits and any of _ . / -")
    return S3Address(
        access=read_access(parts, options, options.get("region", "")),
        bucket=parts.hostname or "",
        prefix=f"{prefix}/" if prefix else "",
    )


@asynccontextmanager
async def opened(place: S3Address) -> AsyncIterator[Client]:
    """Open a client. Checksums are those that an operation requires: services that speak S3 know no others."""
    settings: dict[str, Any] = {
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if place.access.endpoint:
        settings["s3"] = {"addressing_style": "path"}  # a host of one's own has no names for buckets
    async with connected("s3", place.access, **settings) as client:
        # It would ask before each body whether to send it: one round trip more for every write.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        yield client


async def list_names(client: Client, place: S3Address, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
    """List names that begin with `prefix` in the order of their keys, those behind `after`.

    Raises CommitFailed, OutcomeUnknown.
    """
    found: list[str] = []
    more: dict[str, str] = {"StartAfter": place.key(after)} if after else {}
    while limit is None or len(found) < limit:
        asked = 1000 if limit is None else min(limit - len(found), 1000)
        with translated(f"listing {place.bucket}", DEFINITE):
            answer = await client.list_objects_v2(Bucket=place.bucket, Prefix=place.key(prefix), MaxKeys=asked, **more)
            found += [place.name(each["Key"]) for each in answer.get("Contents", ())]
            is_whole = not answer["IsTruncated"]
        if is_whole:
            break
        more = {"ContinuationToken": answer["NextContinuationToken"]}
    return found


async def create_bucket(client: Client, place: S3Address) -> None:
    """Make the bucket where it is missing. Raises SetupError, RetryableError."""
    region = client.meta.region_name
    settings = {} if region in {"us-east-1", "aws-global"} else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    remedy = {"BucketAlreadyExists": "this name is taken by another account; choose another one"}
    with told_at_start(f"making the bucket {place.bucket}", remedy, DEFINITE):
        try:
            await client.create_bucket(Bucket=place.bucket, **settings)
        except ServiceError as error:
            if code_of(error) != "BucketAlreadyOwnedByYou":
                raise


async def check_bucket(client: Client, place: S3Address) -> tuple[str, ...]:
    """Make sure that there is a bucket. Raises SetupError, RetryableError."""
    with told_at_start(f"the bucket {place.bucket}", _MISSING, DEFINITE):
        await client.list_objects_v2(Bucket=place.bucket, Prefix=place.prefix, MaxKeys=1)
    return ()


async def check_conditions(client: Client, place: S3Address) -> None:
    """Prove with an object of its own that writes and deletes obey their conditions: not every service that speaks S3 does.

    The object is beside the documents, not below their prefix. Raises SetupError, RetryableError.
    """
    key = f"{place.prefix.removesuffix('/')}-onceonly-check-{uuid4().hex}"
    put, delete = client.put_object, client.delete_object
    with told_at_start(f"a conditional write in the bucket {place.bucket}", _MISSING, DEFINITE):
        tag = (await put(Bucket=place.bucket, Key=key, Body=b"1", IfNoneMatch="*"))["ETag"]
        try:
            obeyed = [
                await _is_refused(put, Bucket=place.bucket, Key=key, Body=b"2", IfNoneMatch="*"),
                await _is_refused(put, Bucket=place.bucket, Key=key, Body=b"2", IfMatch='"00000000000000000000000000000000"'),
                await _is_refused(delete, Bucket=place.bucket, Key=key, IfMatch='"00000000000000000000000000000000"'),
                not await _is_refused(put, Bucket=place.bucket, Key=key, Body=b"3", IfMatch=tag),
            ]
        finally:
            await delete(Bucket=place.bucket, Key=key)
    if not all(obeyed):
        raise SetupError(
            f"the service of bucket {place.bucket} does not obey If-None-Match and If-Match in every write and delete;"
            " documents would overwrite each other there: use another service"
        )


async def _is_refused(request: Any, **arguments: object) -> bool:
    try:
        await request(**arguments)
    except ServiceError as error:
        if code_of(error) in OTHER_VERSION:
            return True
        raise
    return False
