"""Documents that are too large for their service: whose bytes they are, whether trying again helps, and what a person can do.

What others have in a document only for a while, messages that are not sent yet and rows of the register, gives room on its own.
Everything else needs more room.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from onceonly.formats.documents import EntityDocument, MessageState, encode_entity
from onceonly.model.errors import CommitRefused, PermanentFailure
from onceonly.model.wording import counted
from onceonly.ports.documents import DocumentLimits

_MOST_ROOM = 16 * 1024
_SLIGHT = 8
"""A part that is smaller than the largest one by this factor is not worth a word."""
_DONE = 10**12
"""An instant as long as any that is kept."""


class SizePart(NamedTuple):
    """What has this many bytes of a document, and what would make them fewer."""

    size: int
    words: str
    remedy: str


def room(limits: DocumentLimits) -> int:
    """Return how many bytes of each document are left free by commits: for register rows, which are written before them."""
    return min(_MOST_ROOM, limits.body // 16)


def refusal(
    key: str, document: EntityDocument, own: Collection[str], limits: DocumentLimits, *, keeps_history: bool
) -> CommitRefused:
    """Return the error for a document that is too large, and why it is. PermanentFailure unless that goes on its own.

    `own` are the names of the records that are to be written now.
    """
    size, reserved = len(encode_entity(document)), room(limits)
    most = limits.body - reserved
    limit = f"{most:,} ({limits.service} stores {limits.body:,}, and {reserved:,} are reserved)"
    words = f"document {key!r} would be {size:,} bytes long; the limit is {limit}"
    rest = _when_others_are_done(document, own, keeps_history=keeps_history)
    least = len(encode_entity(rest))
    if least <= most:
        return CommitRefused(f"{words}: {size - least:,} bytes become free when its other messages have been sent")
    parts = sorted(_parts(rest, own, keeps_history=keeps_history), reverse=True)
    large = [part for part in parts if part.size * _SLIGHT >= parts[0].size]
    enough = [part for part in large if least - part.size <= most] or large
    advice = "; ".join(f"{part.size:,} bytes are {part.words} ({part.remedy})" for part in enough)
    return PermanentFailure(f"{words}. Make room, then retry: {advice}")


def _when_others_are_done(document: EntityDocument, own: Collection[str], *, keeps_history: bool) -> EntityDocument:
    """Return what is left of a document once all others have sent their pending effects."""
    records = dict(document.records)
    for name, each in document.records.items():
        if each.pending and name not in own:
            del records[name]
            if each.until > 0 or (keeps_history and not each.until):
                records[name] = MessageState(each.body, done=_DONE, until=each.until)
    return replace(document, records=records, register={})


def _parts(document: EntityDocument, own: Collection[str], *, keeps_history: bool) -> Iterator[SizePart]:
    finished = {name for name, each in document.records.items() if name not in own and not each.until}
    ended = {name for name, each in document.records.items() if name not in own and each.until}
    whole = len(encode_entity(document))

    def without(**less: object) -> int:
        return whole - len(encode_entity(replace(document, **less)))

    def without_records(names: Collection[str]) -> int:
        return without(records={name: each for name, each in document.records.items() if name not in names})

    if keeps_history:
        remedy = "shorten History(retention=...), or use a DedupStore or Tokens"
        yield SizePart(without_records(finished), f"the history of {counted(len(finished), 'message')}", remedy)
    else:
        words = f"{counted(len(finished), 'message')} finished under an earlier setting"
        yield SizePart(without_records(finished), words, "deleted 30 days after they finished")
    answers = without(keys={}) + without_records(ended)
    yield SizePart(answers, "the answers of transactions", "shorten ControlMessages(retention=...), or return smaller answers")
    yield SizePart(without(state=None), "the state", "make the entity smaller")
    pending = [name for name in own if name in document.records and document.records[name].pending]
    yield SizePart(without_records(pending), "the messages to be sent", "send fewer or smaller messages")
