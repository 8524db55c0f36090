"""The sizes of what deduplication stores on documents, measured on samples that are encoded as the stores encode them."""

from datetime import timedelta

from onceonly.config.document_costs import DocumentSizes
from onceonly.config.location import Location, scheme_of
from onceonly.documents.dedup import mark_size
from onceonly.documents.limits import DOCUMENT_LIMITS
from onceonly.documents.size import room
from onceonly.documents.store import BUCKET, MESSAGE
from onceonly.documents.tokens import live_token_size
from onceonly.formats.documents import EntityDocument, MessageState, encode_entity
from onceonly.model.identity import CLAIM_KEY_BYTES, FINGERPRINT_BYTES, Identity
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.model.retention import CLOCK_MARGIN_MS
from onceonly.model.token import Token

MARGIN = timedelta(milliseconds=CLOCK_MARGIN_MS)
"""How much longer than the retention documents keep what they remember."""

_NOW = 1_800_000_000_000
_SAMPLE_ID = "0199e5a0-7c3e-7d34-9a5b-1c2d3e4f5a6b"
_NAME = "0" * (2 * CLAIM_KEY_BYTES)
_SERVICES = {
    "azure-blob": "Azure Blob",
    "azure-table": "Azure Table",
    "cosmos": "Cosmos DB",
    "dynamodb": "DynamoDB",
    "mongodb": "MongoDB",
    "redis": "Redis",
    "s3": "S3",
}
_ALIASES = {"rediss": "redis"}


def service_of(place: Location) -> str:
    """Return the name under which a price table has the service of a place: the scheme of its URL."""
    scheme = scheme_of(str(place.setting)).partition("+")[0]
    return _ALIASES.get(scheme, scheme)


def most_bytes(service: str) -> int | None:
    """Return the size that a commit may give a document of a service. None if the service is not one of the library's."""
    limits = DOCUMENT_LIMITS.get(_SERVICES.get(service, ""))
    return None if limits is None else limits.body - room(limits)


def measure_sizes(endpoint: str, *, sends: int, message_bytes: int) -> DocumentSizes:
    """Encode samples, with `sends` messages of `message_bytes` in each unsent record."""
    fingerprint = bytes(FINGERPRINT_BYTES)
    identity = Identity(endpoint, _SAMPLE_ID)
    message = Message(id=_SAMPLE_ID, source=endpoint, type="Sample", body=b"x" * message_bytes)
    record = Record(identity, tuple(Send(message=message, to=endpoint) for _ in range(sends)))
    done = MessageState(fingerprint.hex(), done=_NOW)
    pending = MessageState.of(fingerprint, record, endpoint=endpoint, since=_NOW)
    empty = len(encode_entity(EntityDocument()))
    own_key = len(f"{MESSAGE}{endpoint}/{_NAME}")
    return DocumentSizes(
        document=empty + len(f"{BUCKET}{endpoint}/00"),
        done=_added(done),
        pending=_added(pending),
        message=len(encode_entity(EntityDocument(records={_NAME: done}))) + own_key,
        mark=mark_size(_NOW, fingerprint),
        token=live_token_size(Token(_SAMPLE_ID, endpoint)),
    )


def _added(state: MessageState) -> int:
    """Return the bytes by which one more record makes a document larger."""
    one = encode_entity(EntityDocument(records={_NAME: state}))
    two = encode_entity(EntityDocument(records={_NAME: state, _NAME.replace("0", "1"): state}))
    return len(two) - len(one)
