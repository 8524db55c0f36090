"""What can be done with dead letters: choose, send again, remove. No terminal here."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import monotonic

from msgspec import Struct

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError, TryAgain
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly.ports.surroundings import Clock
from onceonly.ports.transport import Transport

PAGE = 100
HEAD_START = 2.0
"""Seconds a retried message waits in its queue: time to remove its letter before it could become one again."""


class Chosen(Struct, frozen=True, kw_only=True):
    """The letters a command is about: these keys (the beginning of a key is enough), or all that pass the filter."""

    keys: tuple[str, ...] = ()
    filter: Filter = Filter()


class Retried(Struct, frozen=True, kw_only=True):
    """What came of retrying: how many were sent back, and why each of the others was not, by key."""

    sent: int = 0
    kept: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: "Retried") -> "Retried":
        """Add two results up."""
        return Retried(sent=self.sent + other.sent, kept=self.kept + other.kept)


async def choose(letters: DeadLetters, chosen: Chosen, *, limit: int | None = None) -> list[DeadLetter]:
    """Give the letters chosen, at most `limit`. Raises SetupError for a key that names none, or more than one."""
    if chosen.keys:
        return [await find(letters, key) for key in chosen.keys]
    found: list[DeadLetter] = []
    async for letter in _all(letters, chosen.filter):
        if limit is not None and len(found) == limit:
            break
        found.append(letter)
    return found


async def find(letters: DeadLetters, key: str) -> DeadLetter:
    """Give one letter by its key, or by the beginning of it. Raises SetupError when there is none, or more than one."""
    exact = await letters.get(key)
    if exact is not None:
        return exact
    found = [letter async for letter in _all(letters, Filter()) if key and letter.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SetupError(f"{len(found)} dead letters have keys that begin with {key!r}: give more digits")
    raise SetupError(f"there is no dead letter with key {key!r}: `onceonly dead list` shows those there are")


async def retry(
    found: Sequence[DeadLetter], letters: DeadLetters, transport: Transport, *, clock: Clock, head_start: float = HEAD_START
) -> Retried:
    """Send these messages back to their endpoint's queue, ids unchanged, and remove the letters of those that were taken.

    Returns when the messages are due, `head_start` seconds after the last was sent.
    """
    done = Retried(kept=tuple((letter.key, why) for letter in found if (why := _hopeless(letter))))
    able = [letter for letter in found if not _hopeless(letter)]
    for start in range(0, len(able), PAGE):
        began = monotonic()
        due = clock.now() + int(head_start * 1000)
        taken, kept = await _send_back(able[start : start + PAGE], transport, due)
        # A message that fails again at once becomes the same letter: removing that one would lose it. So it was sent with
        # a head start, and its letter is removed only while that lasts; one that stays is harmless, its message is known.
        in_time = monotonic() - began < head_start / 2
        if in_time:
            await letters.remove([letter.key for letter in taken])
        late = () if in_time else tuple((letter.key, "sent, but too slowly to remove its letter safely") for letter in taken)
        done += Retried(sent=len(taken), kept=(*kept, *late))
        if start + PAGE >= len(able):
            await asyncio.sleep(max(0.0, began + head_start - monotonic()))
    return done


async def _send_back(
    able: Sequence[DeadLetter], transport: Transport, due: int
) -> tuple[list[DeadLetter], tuple[tuple[str, str], ...]]:
    """Send the messages of these letters; gives the letters whose message was taken, and why the others were not."""
    try:
        answers = await transport.send([send for letter in able if (send := _again(letter, due))])
    except TryAgain:
        answers = tuple(Answer.UNKNOWN for _ in able)
    judged = list(zip(able, answers, strict=True))
    kept = tuple((letter.key, _why(answer, letter)) for letter, answer in judged if answer is not Answer.TAKEN)
    return [letter for letter, answer in judged if answer is Answer.TAKEN], kept


def _again(letter: DeadLetter, due: int) -> Send | None:
    """Make the copy that goes back: marked as ours, so that its attributes name it, and alone in its unit."""
    if letter.message is None:
        return None
    return Send(message=letter.message, to=letter.endpoint, due=due, history=letter.history, alone=True)


def _hopeless(letter: DeadLetter) -> str:
    if letter.message is None:
        return f"it has no identity ({letter.reason}): its sender has to send it again with one"
    return ""


def _why(answer: Answer, letter: DeadLetter) -> str:
    if answer is Answer.REFUSED:
        return f"refused: there is no queue for endpoint {letter.endpoint!r}; run the endpoint once, then retry"
    return "nobody knows whether it was taken; retry it again, its id makes that safe"


async def _all(letters: DeadLetters, chosen: Filter) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await letters.page(chosen, after=after, limit=PAGE):
        for letter in page:
            yield letter
        after = page[-1].key
