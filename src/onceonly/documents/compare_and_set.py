"""Compare-and-set on many documents: look, decide, write what may still be written, and look again where another was first."""

from collections.abc import Callable, Iterable, Mapping

from onceonly.model.errors import Failed, Unknown
from onceonly.ports.documents import Change, Document, Documents

Decide = Callable[[str, Document | None], Change | None]
"""What to write to a document as it is (None: there is none); None when it is to stay as it is."""

_TRIES = 5
_NO_GUESSES: Mapping[str, Document | None] = {}


async def compare_and_set(
    documents: Documents,
    keys: Iterable[str],
    decide: Decide,
    *,
    guesses: Mapping[str, Document | None] = _NO_GUESSES,
) -> None:
    """Bring each of these documents to where `decide` leaves it as it is; not atomic across documents.

    A guess saves the first look at a document that would be written if it is right; a wrong one costs a look later, never
    correctness, because every write names the version it expects. Raises Failed when nothing was written, else Unknown.
    """
    left, wrote = list(dict.fromkeys(keys)), False
    known = {key: guess for key, guess in guesses.items() if decide(key, guess)}
    try:
        for _ in range(_TRIES):
            found = await _look(documents, left, known)
            changes = [change for key in left if (change := decide(key, found[key]))]
            if not changes:
                return
            answers = await documents.save(changes)
            left = [change.key for change, answer in zip(changes, answers, strict=True) if answer is None]
            wrote = wrote or len(left) < len(changes)
            known = {}
            if not left:
                return
    except Failed as error:
        if wrote:
            raise Unknown(f"some documents were written, and then: {error}") from error
        raise
    words = f"{left[0]!r} was written by others {_TRIES} times in a row; try again"
    raise (Unknown if wrote else Failed)(words)


async def _look(documents: Documents, keys: list[str], known: Mapping[str, Document | None]) -> Mapping[str, Document | None]:
    asked = [key for key in keys if key not in known]
    loaded = await documents.load(asked) if asked else {}
    return {key: known[key] if key in known else loaded.get(key) for key in keys}
