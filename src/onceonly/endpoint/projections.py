"""Projections: what a handler writes to other places after its commit, captured like messages."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from onceonly.documents.projections import DocumentProjection, ProjectedValue
from onceonly.formats.bodies import BodyError, encode_body
from onceonly.model.errors import InvalidEffect, RetryableError, RetryLater
from onceonly.model.escaping import is_utf8
from onceonly.model.projection import CONTENT_PREFIX, LONGEST_KEY, MAX_BODY, MOST_VERSION, MOST_WRITES, ProjectedWrite
from onceonly.model.remote import RemoteRequest, Verb
from onceonly.model.wording import an
from onceonly.ports.projections import ProjectionWriter

RETRY_SECONDS = 10.0
"""Seconds until a handler is tried again that cannot read a projection now."""
_SHOWN = 80


class HandlerProjection:
    """One projection, for one run of a handler. Valid until the handler ends."""

    def __init__(self, name: str, writer: Any, writes: Any) -> None:
        """Capture writes in `writes`, which all projections of the run share. `writer` is None where only names are known."""
        self._name = name
        self._writer: ProjectionWriter | None = writer
        self._writes: dict[tuple[str, str], ProjectedWrite] | None = writes

    def put(self, key: str, value: object, *, version: int) -> None:
        """Store a value under a key after the commit, unless the stored version is the same or greater.

        `value` may be what a message's body may be. `version` grows with each change of what the key stands for, such as the
        version column of a row. It is 1 or more. Of two values with one version the first one that is stored stays. A later
        call for the same key replaces an earlier one of this handler.

        Raises InvalidEffect for a wrong key or version, a value over 1 MiB or over the limit of the service, and more than
        100 keys in one handler.
        """
        _check_version(version, self._name)
        self._capture(self._encoded(_checked(key, self._name), value, version))

    def put_content(self, value: object) -> str:
        """Store a value after the commit under a key that is made from its bytes, and return the key.

        The same value has the same key, so it is stored once, whoever stores it. It is never deleted. Raises InvalidEffect as
        `put`.
        """
        write = self._encoded("", value, 0)
        content = write.content_type.encode() + b"\n" + (write.body or b"")
        key = CONTENT_PREFIX + sha256(content).hexdigest()
        self._capture(ProjectedWrite(self._name, key, 0, write.body, write.content_type))
        return key

    def delete(self, key: str, *, version: int) -> None:
        """Delete a key after the commit, unless the stored version is the same or greater.

        A tombstone with this version is kept for the endpoint's retention, at least a week, so that an older `put` that comes
        late does not bring the key back. Raises InvalidEffect for a wrong key or version.
        """
        _check_version(version, self._name)
        self._capture(ProjectedWrite(self._name, _checked(key, self._name), version))

    async def get(self, key: str) -> ProjectedValue | None:
        """Return what is stored under a key, or None. It may be older than the state in the endpoint's store.

        Raises RetryLater if the service is unavailable: pass it on. Raises InvalidEffect for a projection without a URL.
        """
        self._require()
        if not isinstance(self._writer, DocumentProjection):
            raise InvalidEffect(f"projection {self._name!r} cannot be read by get(): it has no URL, so use its own client")
        try:
            return await self._writer.get(key)
        except RetryableError as error:
            raise RetryLater(RETRY_SECONDS, f"projection {self._name!r} is unreachable: {error}") from error

    def _end(self) -> None:
        self._writes = None

    def _require(self) -> dict[tuple[str, str], ProjectedWrite]:
        if self._writes is None:
            raise InvalidEffect("context.projections was used after the handler ended: write while the handler runs")
        return self._writes

    def _encoded(self, key: str, value: object, version: int) -> ProjectedWrite:
        self._require()
        try:
            body, content_type = encode_body(value)
        except BodyError as error:
            raise InvalidEffect(f"cannot write to projection {self._name!r}: {error}") from error
        if len(body) > MAX_BODY:
            raise InvalidEffect(
                f"cannot write to projection {self._name!r}: the value has {len(body):,} bytes; the limit is {MAX_BODY:,}. "
                "Create a blob, and write its name"
            )
        return ProjectedWrite(self._name, key, version, body, content_type)

    def _capture(self, write: ProjectedWrite) -> None:
        writes = self._require()
        problem = "" if self._writer is None else self._writer.problem(write)
        if (self._name, write.key) not in writes and len(writes) >= MOST_WRITES:
            problem = f"a handler can write at most {MOST_WRITES} keys"
        if problem:
            raise InvalidEffect(f"cannot write {write.key[:_SHOWN]!r} to projection {self._name!r}: {problem}")
        writes[self._name, write.key] = write


class Projections(Mapping[str, HandlerProjection]):
    """The projections of an endpoint by their names, for one run of a handler."""

    def __init__(self, places: Mapping[str, Any]) -> None:
        self._writes: dict[tuple[str, str], ProjectedWrite] = {}
        self._found = {name: HandlerProjection(name, writer, self._writes) for name, writer in places.items()}

    def __getitem__(self, name: str) -> HandlerProjection:
        """Return a projection. Raises InvalidEffect for a name that the endpoint does not have."""
        if name not in self._found:
            known = ", ".join(self._found) or "none"
            raise InvalidEffect(
                f"this endpoint has no projection {name!r:.100}, it has {known}: set Endpoint(..., "
                'projections={"cache": "redis://host/0?prefix=cache:"})'
            )
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def _end(self) -> tuple[RemoteRequest, ...]:
        for each in self._found.values():
            each._end()  # noqa: SLF001 - its own
        return tuple(RemoteRequest(Verb.WRITE, write.url, write) for write in self._writes.values())


def decided_writes(projections: Projections) -> tuple[RemoteRequest, ...]:
    """Close the projections of a handler. Returns the writes to make after the commit, in order."""
    return projections._end()  # noqa: SLF001 - for this library, not for handlers


def _checked(key: object, projection: str) -> str:
    if not isinstance(key, str) or not key or not is_utf8(key) or len(key.encode()) > LONGEST_KEY:
        shown = f"{key!r:.100}" if isinstance(key, str) else an(type(key).__name__)
        raise InvalidEffect(
            f"cannot write {shown} to projection {projection!r}: a key is text of 1 to {LONGEST_KEY} bytes in UTF-8"
        )
    if key.startswith(CONTENT_PREFIX):
        raise InvalidEffect(
            f"cannot write {key[:_SHOWN]!r} to projection {projection!r}: keys that begin with {CONTENT_PREFIX!r} are for "
            "put_content()"
        )
    return key


def _check_version(version: object, projection: str) -> None:
    if type(version) is not int or not 1 <= version <= MOST_VERSION:
        raise InvalidEffect(
            f"cannot write to projection {projection!r}: version must be a whole number from 1 to 2**62, not {version!r:.100}"
        )
