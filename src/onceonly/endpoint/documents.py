"""The application's own documents in a handler: read while it runs, and written with the commit of its message, all or none."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar, overload
from uuid import UUID

from onceonly.config.deduplication import is_duration
from onceonly.documents.application import ApplicationDocuments
from onceonly.endpoint.signatures import words
from onceonly.formats.bodies import BodyError, check_written, codec_for
from onceonly.formats.documents import is_json
from onceonly.formats.entities import is_entity_class
from onceonly.model.errors import CommitRefused, InvalidEffect, RetryableError, RetryLater, SetupError
from onceonly.model.escaping import is_utf8
from onceonly.model.wording import an
from onceonly.ports.documents import DocumentAddress
from onceonly.ports.store import Resources

RETRY_SECONDS = 10.0
"""Seconds until a handler is tried again whose document cannot be read now."""
_Kind = TypeVar("_Kind")
DocumentKey = str | int | UUID | Enum | Sequence[str | int | UUID | Enum]
"""The key of a document, or the parts of it where the service has keys of several parts."""


class ContextDocuments:
    """The application's own documents, as one handler reads and changes them. Valid until the handler ends.

    They are plain documents of the service, in the endpoint's store. What is written is committed in the same atomic step as
    the entity and the record of the message. A document that was read with `get` is written only if nobody else has changed it
    since; otherwise the message is handled again. A document that was not read is replaced, whatever it contains.
    """

    def __init__(self, resources: Resources, *, now: int) -> None:
        self._resources = resources
        self._now = now
        self._ended = False

    @overload
    async def get(self, key: DocumentKey, *, collection: str = ...) -> dict[str, Any] | None: ...
    @overload
    async def get(self, key: DocumentKey, kind: type[_Kind], *, collection: str = ...) -> _Kind | None: ...
    async def get(self, key: DocumentKey, kind: type[Any] = dict, *, collection: str = "") -> Any:
        """Return a document, or None if it does not exist. A document that this message has written is returned as written.

        `kind` is the class to read it as: one that messages can have, such as a dataclass. `collection` is the table or the
        collection, where the service has several; empty for that of the store. A document that is read and not written can
        be changed by others before the commit. It has its key fields under the names of the service, such as `_id` or `RowKey`.

        Raises RetryLater if the service does not answer: pass it on. Raises InvalidEffect for a key that cannot be one,
        SetupError for a store without such documents, and CommitRefused for a document that is not JSON, or not of this class.
        """
        documents, address = self._require(), document_address(key, collection)
        codec = codec_for(kind)
        try:
            found = await documents.get(address)
        except CommitRefused:
            raise
        except RetryableError as error:
            raise _unreachable(error) from error
        try:
            return None if found is None else codec.decode(found)
        except BodyError as error:
            raise CommitRefused(f"document {_shown(address)} cannot be read as {words(kind)}: {error}") from error

    def put(self, key: DocumentKey, document: object, *, collection: str = "", ttl: timedelta | None = None) -> None:
        """Write a document with the commit.

        `document` is a dict, or an object of a class that messages can have, and is encoded at once. Its key fields may be left
        out, and are refused if they differ from `key`. `ttl` is how long the service keeps it, where the service can delete
        documents. None keeps it for as long as the service is set to.

        Raises InvalidEffect for a key or a document that the service does not take, and for more documents than it can write at
        once. Raises SetupError for a store without such documents.
        """
        documents, address = self._require(), document_address(key, collection)
        if ttl is not None and not (is_duration(ttl) and ttl > timedelta(0)):
            raise InvalidEffect(f"ttl must be a timedelta longer than 0, not {ttl!r}")
        expires = 0 if ttl is None else self._now + max(1, ttl // timedelta(milliseconds=1))
        if problem := documents.put(address, _encoded(address, document), expires=expires):
            raise InvalidEffect(f"cannot write document {_shown(address)}: {problem}")

    async def delete(self, key: DocumentKey, *, collection: str = "") -> None:
        """Delete a document with the commit, if it exists. It is read first, and is deleted only as it was read.

        Raises RetryLater, InvalidEffect, SetupError, as `get`.
        """
        documents, address = self._require(), document_address(key, collection)
        try:
            await documents.delete(address)
        except CommitRefused:
            raise
        except RetryableError as error:
            raise _unreachable(error) from error

    def _close(self) -> None:
        self._ended = True

    def _require(self) -> ApplicationDocuments:
        if self._ended:
            raise InvalidEffect("context.documents was used after the handler ended: use it while the handler runs")
        try:
            found = self._resources.get(ApplicationDocuments)
        except LookupError as error:
            raise SetupError(f"context.documents cannot be used here: {error}") from None
        assert isinstance(found, ApplicationDocuments)  # noqa: S101 - the resource of this type
        return found


def close_documents(documents: ContextDocuments) -> None:
    documents._close()  # noqa: SLF001 - for this library, not for handlers


def document_address(key: object, collection: object) -> DocumentAddress:
    """Return where a document with this key is. Raises InvalidEffect for what cannot be a key or a collection."""
    parts = tuple(key) if isinstance(key, list | tuple) else (key,)
    if not isinstance(collection, str) or not is_utf8(collection):
        raise InvalidEffect(f"collection must be the name of a table or a collection, not {collection!r:.80}")
    if not parts:
        raise InvalidEffect("the key of a document has no parts: use at least one")
    return DocumentAddress(collection, tuple(map(_part, parts)))


def _part(part: object) -> str | int:
    if isinstance(part, Enum):
        part = part.value
    if isinstance(part, UUID):
        part = str(part)
    if isinstance(part, str) and part and "\0" not in part and is_utf8(part):
        return part
    if isinstance(part, int) and not isinstance(part, bool):
        return part
    if isinstance(part, str):
        raise InvalidEffect(f"{part!r:.80} cannot be the key of a document: it is empty, has a NUL character or is not UTF-8")
    raise InvalidEffect(
        f"the key of a document must be a str, an int, a UUID or an enum of these, not {an(type(part).__name__)}"
    )


def _encoded(address: DocumentAddress, document: object) -> bytes:
    kind = dict if isinstance(document, Mapping) else type(document)
    if kind is not dict and not is_entity_class(kind):
        raise InvalidEffect(
            f"cannot write document {_shown(address)}: {an(words(kind))} cannot be a document. Use a dict, or a class that "
            "messages can have"
        )
    try:
        check_written(kind)
        body = codec_for(kind).encode(dict(document) if isinstance(document, Mapping) else document)
    except BodyError as error:
        raise InvalidEffect(f"cannot write document {_shown(address)}: {error}") from error
    if not body.startswith(b"{") or not is_json(body):
        raise InvalidEffect(f"cannot write document {_shown(address)}: it is encoded as something else than a JSON object")
    return body


def _shown(address: DocumentAddress) -> str:
    parts = address.key[0] if len(address.key) == 1 else address.key
    return f"{parts!r:.80}" + (f" of {address.collection!r:.80}" if address.collection else "")


def _unreachable(error: Exception) -> RetryLater:
    return RetryLater(RETRY_SECONDS, f"the document service is unreachable: {error}")
