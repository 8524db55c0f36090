"""What can be done with dead letters: choose, send again, remove. No terminal here."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError, TryAgain
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.model.ring import INSTANT, Bar
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly.ports.surroundings import Clock
from onceonly.ports.transport import Transport

PAGE = 100
BARRED = (Bar.BEHIND.value, Bar.FUTURE.value)
"""The reasons of letters whose store cannot tell whether they were handled."""
HEAD_START = 2.0
"""Seconds a retried message waits in its queue: time to remove its letter before it could become one again."""


class Chosen(Struct, frozen=True, kw_only=True):
    """The letters a command is about: these keys (the beginning of a key is enough), or all that pass the filter."""

    keys: tuple[str, ...] = ()
    filter: Filter = Filter()


class Retried(Struct):
    """What came of retrying: how many were sent back, why letters stayed, and when the last one sent is due (monotonic)."""

    sent: int = 0
    kept: list[tuple[str, str]] = []
    due: float = 0.0


class WayBack(Struct, frozen=True, kw_only=True):
    """How a message gets back: by this transport, delivered only when `head_start` seconds have passed on this clock.

    With `anyway` also when its store cannot tell whether it was handled before: a person has decided that it was not.
    """

    transport: Transport
    clock: Clock
    head_start: float = HEAD_START
    anyway: bool = False


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


async def pages(letters: DeadLetters, chosen: Chosen) -> AsyncIterator[Sequence[DeadLetter]]:
    """Give the letters chosen that are there now, page by page; whoever reads may remove the page that was given.

    No letter comes twice, also when it was removed and is there again. Raises SetupError as `choose` does.
    """
    if chosen.keys:
        found = {letter.key: letter for letter in await choose(letters, chosen)}
        yield tuple(found.values())
        return
    left, seen = await letters.count(chosen.filter), set[str]()
    page = await letters.page(chosen.filter, limit=PAGE)
    while page and left > 0:
        # read before this page is given away: the next one is found by the last key of this one
        following = await letters.page(chosen.filter, after=page[-1].key, limit=PAGE)
        fresh = [letter for letter in page if letter.key not in seen][:left]
        seen.update(letter.key for letter in fresh)
        left -= len(fresh)
        if fresh:
            yield fresh
        page = following


async def retry(
    found: AsyncIterable[Sequence[DeadLetter]],
    letters: DeadLetters,
    way: WayBack,
    *,
    tally: Retried,
    tick: Callable[[int], object] = int,
) -> None:
    """Send these messages back to their endpoint's queue, ids unchanged, and remove the letters of those that were taken.

    `tally` is kept up to date, also when this raises. Does not wait until the messages are due. Raises Failed, Unknown.
    """
    async for page in found:
        for start in range(0, len(page), PAGE):
            some = page[start : start + PAGE]
            await _retry_some(some, letters, way, tally)
            tick(len(some))


async def _retry_some(some: Sequence[DeadLetter], letters: DeadLetters, way: WayBack, tally: Retried) -> None:
    tally.kept.extend((letter.key, why) for letter in some if (why := _hopeless(letter, anyway=way.anyway)))
    able = [letter for letter in some if not _hopeless(letter, anyway=way.anyway)]
    if not able:
        return
    began = monotonic()
    taken, kept = await _send_back(able, way, way.clock.now() + int(way.head_start * 1000))
    tally.sent += len(taken)
    tally.kept.extend(kept)
    if not taken:
        return
    tally.due = began + way.head_start
    # A message that fails again at once becomes the same letter: removing that one would lose it. So it was sent with
    # a head start, and its letter is removed only while that lasts; one that stays is harmless, its message is known.
    if monotonic() - began < way.head_start / 2:
        await letters.remove([letter.key for letter in taken])
    else:
        tally.kept.extend((letter.key, "sent, but too slowly to remove its letter safely") for letter in taken)


async def _send_back(
    able: Sequence[DeadLetter], way: WayBack, due: int
) -> tuple[list[DeadLetter], tuple[tuple[str, str], ...]]:
    """Send the messages of these letters; gives the letters whose message was taken, and why the others were not."""
    try:
        answers = await way.transport.send([send for letter in able if (send := _again(letter, due, anyway=way.anyway))])
    except TryAgain:
        answers = tuple(Answer.UNKNOWN for _ in able)
    judged = list(zip(able, answers, strict=True))
    kept = tuple((letter.key, _why(answer, letter)) for letter, answer in judged if answer is not Answer.TAKEN)
    return [letter for letter, answer in judged if answer is Answer.TAKEN], kept


def _again(letter: DeadLetter, due: int, *, anyway: bool) -> Send | None:
    """Make the copy that goes back: marked as ours, so that its attributes name it, and alone in its unit.

    What was barred for its instant goes back without one: then it is new, unless it was sent back and handled before.
    """
    message = letter.message
    if message is None:
        return None
    if anyway and letter.reason in BARRED:
        message = replace(message, extensions=tuple(each for each in message.extensions if each[0] != INSTANT))
    return Send(message=message, to=letter.endpoint, due=due, history=letter.history, alone=True)


def _hopeless(letter: DeadLetter, *, anyway: bool) -> str:
    if letter.message is None:
        return f"it has no identity ({letter.reason}): its sender has to send it again with one"
    if letter.reason == Bar.BEHIND.value and not anyway:
        return (
            "it is behind the horizon, and would be refused again; if you know that it was never handled, --anyway handles it"
        )
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
