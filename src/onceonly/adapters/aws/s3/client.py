"""S3: where a bucket is, how keys are written in it, how it is made and proved, and what its errors mean."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from botocore.handlers import add_expect_header  # type: ignore[import-untyped]

from onceonly.adapters.aws.address import S3Address, read_s3
from onceonly.adapters.aws.client import Client, DefiniteError, ServiceError, code_of, connected, setup_errors, translated
from onceonly.model.errors import SetupError

LONGEST_ENCODED = 3  # bytes that one byte of a key may take
DEFINITE = DefiniteError(
    refused=frozenset({"EntityTooLarge", "KeyTooLongError", "InvalidRequest", "InvalidArgument"}),
    failed=frozenset({"ConditionalRequestConflict", "NoSuchBucket", "OperationAborted"}),
)
"""ConditionalRequestConflict: another write of the key was under way; this one was not carried out, and may be tried again."""
OTHER_VERSION = frozenset({"PreconditionFailed", "NoSuchKey"})
"""Errors of a conditional write if the object is another one or missing."""
_MISSING = {"NoSuchBucket": "the bucket does not exist: run `onceonly schema create module:endpoint`"}


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
        size = 1000 if limit is None else min(limit - len(found), 1000)
        with translated(f"listing {place.bucket}", DEFINITE):
            answer = await client.list_objects_v2(Bucket=place.bucket, Prefix=place.key(prefix), MaxKeys=size, **more)
            found += [place.name(each["Key"]) for each in answer.get("Contents", ())]
            is_whole = not answer["IsTruncated"]
        if is_whole:
            break
        more = {"ContinuationToken": answer["NextContinuationToken"]}
    return found


async def create(url: str) -> None:
    """Create the bucket where it is missing. Raises SetupError, RetryableError."""
    place = read_s3(url)
    async with opened(place) as client:
        region = client.meta.region_name
        default = region in {"us-east-1", "aws-global"}
        settings = {} if default else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        remedy = {"BucketAlreadyExists": "the bucket name is used by another AWS account: choose another name"}
        with setup_errors(f"creating the bucket {place.bucket}", remedy, DEFINITE):
            try:
                await client.create_bucket(Bucket=place.bucket, **settings)
            except ServiceError as error:
                if code_of(error) != "BucketAlreadyOwnedByYou":
                    raise


async def check_bucket(client: Client, place: S3Address) -> tuple[str, ...]:
    """Make sure that there is a bucket. Raises SetupError, RetryableError."""
    with setup_errors(f"the bucket {place.bucket}", _MISSING, DEFINITE):
        await client.list_objects_v2(Bucket=place.bucket, Prefix=place.prefix, MaxKeys=1)
    return ()


async def check_conditions(client: Client, place: S3Address) -> None:
    """Prove with an object of its own that writes and deletes obey their conditions: not every service that speaks S3 does.

    The object is next to the documents, not below their prefix. Raises SetupError, RetryableError.
    """
    key = f"{place.prefix.removesuffix('/')}-onceonly-check-{uuid4().hex}"
    put, delete = client.put_object, client.delete_object
    with setup_errors(f"a conditional write in the bucket {place.bucket}", _MISSING, DEFINITE):
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
            f"the service of bucket {place.bucket} ignores If-None-Match or If-Match, so documents would "
            "overwrite each other: use another service"
        )


async def _is_refused(request: Any, **arguments: object) -> bool:
    try:
        await request(**arguments)
    except ServiceError as error:
        if code_of(error) in OTHER_VERSION:
            return True
        raise
    return False
