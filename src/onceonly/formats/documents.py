"""An entity's document: its state, and next to it what is known about the messages it handled (protocols, section 2).

JSON, so that people can read it where the service shows it:

    {"onceonly": 1, "state": {...},
     "records": {KEY: {"body": HASH, "owes": BASE64, "of": [ENDPOINT, SOURCE, ID], "since": 1767225600000},
                 KEY: {"body": HASH, "done": 1767225600000}},
     "register": {ATTEMPT: {"message": KEY, "at": 1767225600000, "cancelled": false}}}

Where transactions were at work it also has:

     "records": {ATTEMPT: {"body": "", "done": 1767225600000, "until": 1767312000000}},
     "keys": {CLIENT: {"attempt": "...", "fingerprint": HASH, "answer": BASE64, "until": 1767312000000}},
     "leads_to": "entity/Account/A"

KEY is the claim key in hexadecimal digits, "owes" a record as SQL stores keep it, "of" what it belongs to, `since` when it was
committed and `done` when it was finished, in milliseconds since 1970. Earlier versions wrote neither "of" nor `since`. `state`
is null for an entity that does not exist or was deleted: its records outlive it. `until` is the instant up to which it is kept.
`leads_to` is in the document of a client's key alone: where the key is kept.

What is finished, forgotten, cancelled or removed makes a document smaller, so that a full one can always be tidied up.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct, field

from onceonly.formats.records import decode_record, encode_record
from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.errors import PermanentFailure, SchemaTooNew, UpgradeRequired
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry as KeptKey

FORMAT = 1
ORIGIN_PARTS = 3
"""An endpoint, a source and an id."""
_NULL = b"null"


class MessageState(Struct, frozen=True, omit_defaults=True):
    """What a document knows about one message: the hash of its body, and its pending effects, or when it was finished.

    Or about one attempt at a transaction, which has no body: it is kept up to the instant `until`. While it is pending,
    `origin` has the endpoint and the identity that its name is made of, so that a relay finds them, and `since` the instant of
    its commit. Both are missing in what an earlier version wrote.
    """

    body: str
    pending: str = field(default="", name="owes")
    done: int = 0
    until: int = 0
    origin: tuple[str, ...] = field(default=(), name="of")
    since: int = 0

    @classmethod
    def of(cls, fingerprint: bytes, record: Record, *, endpoint: str = "", since: int = 0, until: int = 0) -> "MessageState":
        pending, identity = b64encode(encode_record(record)).decode(), record.identity
        origin = (endpoint, identity.source, identity.id) if endpoint and record.is_pending else ()
        return cls(fingerprint.hex(), pending, until=until, origin=origin, since=since if origin else 0)

    def pending_of(self, endpoint: str) -> Identity | None:
        """Return the identity of an unsent record of this endpoint; None for any other."""
        if not self.pending or self.origin[:1] != (endpoint,) or len(self.origin) != ORIGIN_PARTS:
            return None
        return Identity(self.origin[1], self.origin[2])

    def record(self, identity: Identity, unit: str) -> Record:
        """Return the record; one that has nothing pending has no effects.

        Raises PermanentFailure, UpgradeRequired, as `decode_entity` does.
        """
        if not self.pending:
            return Record(identity, unit=unit)
        try:
            return decode_record(identity, b64decode(self.pending, validate=True), unit)
        except SchemaTooNew as error:
            raise UpgradeRequired(f"a record in document {unit!r} was {error}") from error
        except UNDECODABLE as error:
            raise _unreadable(unit, error) from error


class StoredReservation(Struct, frozen=True):
    """A register row inside a document: the message's KEY, when it was opened. Every row has the same size."""

    message: str
    at: int
    cancelled: bool = False


class ClientKey(Struct, frozen=True, omit_defaults=True):
    """A client's key inside a document: which attempt was committed under it, what was asked, and the answer."""

    attempt: str
    fingerprint: str
    until: int
    answer: str | None = None

    @classmethod
    def of(cls, kept: KeptKey, *, until: int) -> "ClientKey":
        answer = None if kept.answer is None else b64encode(kept.answer).decode()
        return cls(kept.attempt, kept.fingerprint.hex(), until, answer)

    def entry(self, unit: str) -> KeptKey:
        """Return what is committed under it. Raises CommitRefused for what is none of ours."""
        try:
            answer = None if self.answer is None else b64decode(self.answer, validate=True)
            return KeptKey(self.attempt, bytes.fromhex(self.fingerprint), answer)
        except ValueError as error:
            raise _unreadable(unit, error) from error


class EntityDocument(Struct, frozen=True):
    """One document, taken apart. `state` is JSON text, None if the entity does not exist.

    `leads_to` is empty but in the document of a client's key: the document in which the key is committed, if it is.
    """

    state: bytes | None = None
    records: Mapping[str, MessageState] = {}
    register: Mapping[str, StoredReservation] = {}
    keys: Mapping[str, ClientKey] = {}
    leads_to: str = ""


class _Stored(Struct, frozen=True, omit_defaults=True):
    onceonly: int
    state: Raw = Raw(_NULL)
    records: dict[str, MessageState] = {}
    register: dict[str, StoredReservation] = {}
    keys: dict[str, ClientKey] = {}
    leads_to: str = ""


class _Format(Struct, frozen=True):
    onceonly: int


_decode = msgspec.json.Decoder(_Stored).decode
_decode_format = msgspec.json.Decoder(_Format).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def encode_entity(document: EntityDocument) -> bytes:
    state = Raw(document.state if document.state is not None else _NULL)
    parts = (dict(document.records), dict(document.register), dict(document.keys))
    return _encode(_Stored(FORMAT, state, *parts, document.leads_to))


def decode_entity(key: str, stored: bytes | None) -> EntityDocument:
    """Take a document apart; None is one that does not exist yet.

    Raises PermanentFailure for what is none of ours, so that its messages become dead letters at once, and UpgradeRequired for
    one that a newer onceonly wrote.
    """
    if stored is None:
        return EntityDocument()
    try:
        format_ = _decode_format(stored).onceonly
        if format_ > FORMAT:
            raise UpgradeRequired(f"document {key!r} was written by a newer onceonly (format {format_}): upgrade this process")
        found = _decode(stored)
    except UNDECODABLE as error:
        raise _unreadable(key, error) from error
    state = None if bytes(found.state) == _NULL else bytes(found.state)
    return EntityDocument(state, found.records, found.register, found.keys, found.leads_to)


def is_json(state: bytes) -> bool:
    """Return whether a state is one JSON value, as it must be inside a document."""
    try:
        _decode_any(state)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _unreadable(key: str, error: Exception) -> PermanentFailure:
    return PermanentFailure(f"document {key!r} was not written by onceonly, or was changed by hand: {error}")
