"""Blobs: files that a handler makes, captured like messages; they are made before the commit that permits them, or unmade.

A blob's name begins with the attempt that makes it, so it cannot be found before a message or a row announces it.
"""

import re
from typing import NamedTuple

from onceonly.model.artifact import Artifact
from onceonly.model.errors import InvalidEffect, RetryableError, RetryLater
from onceonly.model.escaping import is_utf8
from onceonly.model.headers import content_type_problem
from onceonly.model.wording import an
from onceonly.ports.effects import ArtifactStore

KIND = "blob"
MAX_DATA = 64 * 1024 * 1024
"""Bytes of one blob: all of a message's are held in memory until its unit is committed."""
MAX_BLOBS = 100
LONGEST_NAME = 400
"""Bytes of a name: with the attempt and the prefix of its place it is one that every place takes."""
RETRY_SECONDS = 10.0
"""Seconds until a handler is tried again whose blob cannot be read now."""

_PART = r'[^\x00-\x1f\x7f/\\:*?"<>|]*[^\x00-\x1f\x7f/\\:*?"<>|. ]'
_LONGEST_PART = 200
_NAME_RULE = (
    "a blob name consists of parts separated by single '/'. Each part has at most 200 bytes, no "
    'control characters, none of \\ : * ? " < > |, and no dot or space at its end'
)


class BlobPlace(NamedTuple):
    """Where an endpoint's blobs are; `artifacts` is None where they can be made, but nothing can be read by handlers."""

    artifacts: ArtifactStore | None = None


class Blobs:
    """The blobs of one handler's run. Valid until the handler ends."""

    def __init__(self, place: BlobPlace | None, attempt: str) -> None:
        self._place = place
        self._attempt = attempt
        self._artifacts: dict[str, Artifact] = {}
        self._ended = False

    async def create(
        self, name: str, data: bytes | bytearray | memoryview, *, content_type: str = "application/octet-stream"
    ) -> str:
        """Create a blob with the commit. Returns its final name, for use in a message or a row.

        Only readers that receive the final name can find the blob. `name` may have parts between "/". Raises InvalidEffect
        for an invalid or repeated name, more than 64 MiB, more than 100 blobs, and for an endpoint without a blob store.
        """
        self._require()
        if not self._attempt:
            raise InvalidEffect(
                "no blob can be created here: this attempt has no reservation, so the blob could not be cleaned up"
            )
        problem = _name_problem(name) or _data_problem(data) or _type_problem(content_type) or self._taken(name)
        if problem:
            raise InvalidEffect(f"cannot create the blob {name!r:.80}: {problem}")
        final = f"{self._attempt}/{name}"
        self._artifacts[name] = Artifact(kind=KIND, name=final, data=bytes(data), content_type=content_type)
        return final

    async def read(self, name: str) -> bytes | None:
        """Return the data of a blob by its final name, or None if it does not exist.

        Raises RetryLater if the blob store is unavailable: pass it on. Raises InvalidEffect for an endpoint without a blob
        store.
        """
        artifacts = self._require().artifacts
        if artifacts is None:
            raise InvalidEffect("no blobs can be read here: the endpoint was opened without its `blobs=`")
        try:
            return await artifacts.read(name)
        except RetryableError as error:
            raise RetryLater(RETRY_SECONDS, f"the system for blobs is unreachable: {error}") from error

    def _end(self) -> tuple[Artifact, ...]:
        self._ended = True
        return tuple(self._artifacts.values())

    def _require(self) -> BlobPlace:
        if self._ended:
            raise InvalidEffect("context.blobs was used after the handler ended: create blobs while the handler runs")
        if self._place is None:
            raise InvalidEffect(
                "this endpoint has no system for blobs: set one, such as Endpoint(..., "
                'blobs="folder:///var/lib/shop") or blobs="s3://bucket/prefix"'
            )
        return self._place

    def _taken(self, name: str) -> str:
        if name in self._artifacts:
            return "this handler has already created a blob with this name"
        if any(name.startswith(f"{other}/") or other.startswith(f"{name}/") for other in self._artifacts):
            return "another blob of this handler has a name that is a folder of this one, or inside it"
        if len(self._artifacts) >= MAX_BLOBS:
            return f"a message can create at most {MAX_BLOBS} blobs"
        return ""


def decided_blobs(blobs: Blobs) -> tuple[Artifact, ...]:
    """Close the blobs of a handler and return those to create, in order. Every later use is an error."""
    return blobs._end()  # noqa: SLF001 - for this library, not for handlers


def _name_problem(name: object) -> str:
    if not isinstance(name, str) or not all(map(_is_part, name.split("/"))):
        return _NAME_RULE
    size = len(name.encode())
    return f"its name has {size} bytes; the limit is {LONGEST_NAME}" if size > LONGEST_NAME else ""


def _is_part(part: str) -> bool:
    return re.fullmatch(_PART, part) is not None and is_utf8(part) and len(part.encode()) <= _LONGEST_PART


def _data_problem(data: object) -> str:
    if not isinstance(data, bytes | bytearray | memoryview):
        return f"data must be bytes, not {an(type(data).__name__)}"
    size = memoryview(data).nbytes
    return f"its data has {size:,} bytes; the limit is {MAX_DATA:,}" if size > MAX_DATA else ""


def _type_problem(content_type: object) -> str:
    problem = content_type_problem(content_type)
    return f"content_type {problem}" if problem else ""
