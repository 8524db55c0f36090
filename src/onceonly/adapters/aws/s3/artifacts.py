"""Artifacts in an S3 bucket: one object each, below a prefix, under the name that a message announces."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.adapters.aws.address import LONGEST_KEY, S3Address, read_s3
from onceonly.adapters.aws.client import Client, ServiceError, code_of, translated
from onceonly.adapters.aws.s3.client import DEFINITE, check_bucket, create, list_names, opened
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitRefused

__all__ = ["S3Artifacts", "create", "open_artifacts"]

LARGEST = 5 * 1024**3
"""What S3 takes in one request; more needs several, which are not made."""


class S3Artifacts:
    """Objects in one bucket, with their content types.

    A name of letters, digits and the marks `-_.!*'()=,@:+$&;` is an object's key as it is, behind the prefix; other bytes of
    it are `%` and two digits in the key (`client.py`). An object is there whole or not at all: S3 promises it.
    """

    def __init__(self, client: Client, place: S3Address) -> None:
        self._client, self._place = client, place

    async def create(self, artifact: Artifact) -> None:
        """Put an object; see the port. A name whose key is longer than 1,024 bytes is refused, and data over 5 GB."""
        key = self._key(artifact.name)
        if key is None or len(artifact.data) > LARGEST:
            raise CommitRefused(
                f"S3 cannot store {artifact.name[:50]!r} with {len(artifact.data)} bytes: an encoded key has "
                f"1 to {LONGEST_KEY} bytes, data at most {LARGEST}"
            )
        with translated(f"writing to {self._place.bucket}", DEFINITE):
            await self._client.put_object(
                Bucket=self._place.bucket, Key=key, Body=artifact.data, ContentType=artifact.content_type
            )

    async def delete(self, name: str) -> None:
        if key := self._key(name):
            with translated(f"deleting from {self._place.bucket}", DEFINITE):
                await self._client.delete_object(Bucket=self._place.bucket, Key=key)

    async def read(self, name: str) -> bytes | None:
        key = self._key(name)
        if key is None:
            return None
        with translated(f"reading from {self._place.bucket}", DEFINITE):
            try:
                answer = await self._client.get_object(Bucket=self._place.bucket, Key=key)
            except ServiceError as error:
                if code_of(error) == "NoSuchKey":
                    return None
                raise
            async with answer["Body"] as stream:
                data: bytes = await stream.read()
        return data

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List every name that begins with this; see the port. A request for each thousand."""
        return tuple(await list_names(self._client, self._place, prefix))

    async def check(self) -> tuple[str, ...]:
        """Make sure, at start, that there is a bucket. Raises SetupError, RetryableError."""
        return await check_bucket(self._client, self._place)

    def _key(self, name: str) -> str | None:
        try:
            key = self._place.key(name)
        except UnicodeEncodeError:
            return None
        return key if name and len(key) <= LONGEST_KEY else None


@asynccontextmanager
async def open_artifacts(url: str) -> AsyncIterator[S3Artifacts]:
    """Open the artifacts at `s3://bucket/prefix?region=...&endpoint=...&timeout=...`. Raises SetupError."""
    place = read_s3(url)
    async with opened(place) as client:
        yield S3Artifacts(client, place)
