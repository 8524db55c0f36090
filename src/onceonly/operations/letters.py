"""What can be done with dead letters: choose, send again, remove. No terminal here."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly.opened import BucketClock
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.expiry import EXPIRES
from onceonly.model.message import HOPS, Message, Send
from onceonly.model.record import Answer
from onceonly.model.ring import ANYWAY, Undecidable
from onceonly.ports.dead_letters import DeadLetters, Filter, LetterIndex
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Transport

PAGE = 100
UNDECIDABLE = (Undecidable.TOO_OLD, Undecidable.TOO_NEW)
"""The reasons of letters whose store cannot decide whether they were handled."""
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds since 1970: the years 1 to 9999
TOO_SLOW = "sent, but too slowly to delete its dead letter safely; retrying it again changes nothing"
HEAD_START_SECONDS = 2.0
"""Seconds a retried message waits in its queue: time to remove its letter before it could become one again."""


class LetterSelection(Struct, frozen=True, kw_only=True):
    """The letters a command is about: these keys (the beginning of a key is enough), or all that pass the filter."""

    keys: tuple[str, ...] = ()
    filter: Filter = Filter()


class RetryTally(Struct):
    """What came of retrying: how many were sent back, why letters stayed, and when the last one sent is due (monotonic).

    `early` are those sent that may be refused again, and why.
    """

    sent: int = 0
    kept: list[tuple[str, str]] = []
    early: list[tuple[str, str]] = []
    due: float = 0.0


async def nobody_knows() -> BucketClock | None:
    """Report that the time buckets of the letters' endpoint are not known."""
    return None


class WayBack(Struct, frozen=True, kw_only=True):
    """How a message gets back: by this transport, delivered only when `head_start` seconds have passed on this clock.

    With a `rate`, this number of messages is delivered per second. With `anyway` also when its store cannot decide whether it
    was handled before: a person has decided that it was not. `cut` is asked, where it matters, how that store cuts time.
    `edited` are messages to send in place of those of letters, by the keys of the letters.
    """

    transport: Transport
    clock: Clock
    head_start: float = HEAD_START_SECONDS
    anyway: bool = False
    rate: float = 0.0
    edited: Mapping[str, Message] = {}
    cut: Callable[[], Awaitable[BucketClock | None]] = nobody_knows


async def choose(letters: DeadLetters, chosen: LetterSelection, *, limit: int | None = None) -> list[DeadLetter]:
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
        raise SetupError(f"{len(found)} dead letters have keys that begin with {key!r}: write more digits of the key")
    raise SetupError(f"no dead letter has the key {key!r}: `onceonly dead list module:endpoint` lists the keys")


async def by_endpoint(letters: DeadLetters, chosen: LetterSelection) -> list[LetterSelection]:
    """Divide a selection by the endpoints of its letters. An action on one endpoint can be continued by its dashboard.

    Letters in a document store are not divided unless they are chosen by key: their actions are not stored. Raises SetupError
    as `choose` does.
    """
    if chosen.keys:
        keys: dict[str, list[str]] = {}
        for letter in await choose(letters, chosen):
            keys.setdefault(letter.endpoint, []).append(letter.key)
        return [
            replace(chosen, keys=tuple(own), filter=replace(chosen.filter, endpoint=name)) for name, own in sorted(keys.items())
        ]
    if chosen.filter.endpoint or not isinstance(letters, LetterIndex):
        return [chosen]
    own = [replace(chosen, filter=replace(chosen.filter, endpoint=name)) for name in await letters.endpoints()]
    return [each for each in own if await letters.count(each.filter)] or [chosen]


async def pages(letters: DeadLetters, chosen: LetterSelection) -> AsyncIterator[Sequence[DeadLetter]]:
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
    tally: RetryTally,
    tick: Callable[[int], object] = int,
) -> None:
    """Send these messages back to their endpoint's queue, ids unchanged, and remove the letters of those that were taken.

    `tally` is kept up to date, also when this raises. Does not wait until the messages are due. Raises CommitFailed,
    OutcomeUnknown.
    """
    async for page in found:
        for start in range(0, len(page), PAGE):
            some = page[start : start + PAGE]
            await _retry_some(some, letters, way, tally)
            tick(len(some))


async def _retry_some(some: Sequence[DeadLetter], letters: DeadLetters, way: WayBack, tally: RetryTally) -> None:
    sent = await send_page(some, letters, way)
    tally.kept.extend(sent.kept)
    tally.early.extend(sent.early)
    tally.sent += len(sent.taken)
    tally.due = sent.due or tally.due
    if not sent.deleted:
        tally.kept.extend((letter.key, TOO_SLOW) for letter in sent.taken)


class SentPage(NamedTuple):
    """What became of some letters.

    `taken` are those whose messages were sent, `kept` the keys of the others with the reasons. Unless `deleted`, the letters of
    the messages sent stayed. `early` are keys of messages that may be refused again. `due` is when the last one is delivered,
    by the monotonic clock; 0 if none was sent.
    """

    taken: tuple[DeadLetter, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    early: tuple[tuple[str, str], ...] = ()
    deleted: bool = True
    due: float = 0.0


async def send_page(some: Sequence[DeadLetter], letters: DeadLetters, way: WayBack) -> SentPage:
    """Send the messages of some letters, and delete the letters of those that were taken. Raises CommitFailed, OutcomeUnknown.

    A message that fails again at once becomes the same letter: removing that one would lose it. So it is sent with a head
    start, and its letter is removed only while that lasts. One that stays is harmless: its message is known.
    """
    cut = await way.cut() if not way.anyway and any(Undecidable.TOO_NEW.is_reason(letter.reason) for letter in some) else None
    checked = [(letter, _hopeless(letter, cut, anyway=way.anyway)) for letter in some]
    hopeless = tuple((letter.key, why) for letter, why in checked if why)
    able = [letter for letter, why in checked if not why]
    early = tuple((letter.key, words) for letter in able if not way.anyway and (words := _early(letter, cut)))
    if not able:
        return SentPage(kept=hopeless, early=early)
    began = monotonic()
    taken, kept = await _send_back(able, way, way.clock.now() + int(way.head_start * 1000))
    if not taken:
        return SentPage(kept=(*hopeless, *kept), early=early)
    in_time = monotonic() - began < way.head_start / 2
    if in_time:
        await letters.remove([letter.key for letter in taken])
    lasts = way.head_start + (len(able) / way.rate if way.rate else 0)
    return SentPage(tuple(taken), (*hopeless, *kept), early, in_time, began + lasts)


async def _send_back(
    able: Sequence[DeadLetter], way: WayBack, due: int
) -> tuple[list[DeadLetter], tuple[tuple[str, str], ...]]:
    """Send the messages of these letters; gives the letters whose message was taken, and why the others were not."""
    apart = 1000 / way.rate if way.rate else 0.0
    try:
        answers = await way.transport.send(
            [
                send
                for number, letter in enumerate(able)
                if (send := _again(_as_edited(letter, way), due + int(number * apart), anyway=way.anyway))
            ]
        )
    except RetryableError:
        answers = tuple(Answer.UNKNOWN for _ in able)
    checked = list(zip(able, answers, strict=True))
    kept = tuple((letter.key, _why(answer, letter)) for letter, answer in checked if answer is not Answer.TAKEN)
    return [letter for letter, answer in checked if answer is Answer.TAKEN], kept


def _as_edited(letter: DeadLetter, way: WayBack) -> DeadLetter:
    return replace(letter, message=way.edited[letter.key]) if letter.key in way.edited else letter


def _again(letter: DeadLetter, due: int, *, anyway: bool) -> Send | None:
    """Make the copy that goes back: marked as ours, so that its attributes name it, and alone in its unit.

    It begins a new chain of messages, so that a chain that was too long goes on, and it does not expire. What was undecidable
    for its instant is marked, and claimed without it: it is handled, unless a retry has handled it before.
    """
    message = letter.message
    if message is None:
        return None
    kept = tuple(each for each in message.extensions if each[0] not in (HOPS, EXPIRES))
    if anyway and any(each.is_reason(letter.reason) for each in UNDECIDABLE):
        kept = (*(each for each in kept if each[0] != ANYWAY), (ANYWAY, "1"))
    message = replace(message, extensions=kept)
    return Send(message=message, to=letter.endpoint, due=due, history=letter.history, alone=True)


def _hopeless(letter: DeadLetter, cut: BucketClock | None, *, anyway: bool) -> str:
    if isinstance(letter, UnreadableLetter):
        return "this version cannot read it. Export it, or retry it with the version that stored it"
    if letter.message is None:
        return "it has no identity. Let its sender send it again with an id"
    if Undecidable.TOO_OLD.is_reason(letter.reason) and not anyway:
        return "it is behind the horizon and would be rejected again. If you are sure that it was never handled, use --anyway"
    instant = _instant_ahead(letter)
    opens = cut.bucketing.opens(instant) if cut is not None and instant and not anyway else 0
    if cut is not None and opens > cut.now:
        return (
            f"its time, {moment(instant)}, is in the future; retry it after {moment(opens)} by the clock of its store, correct "
            "that clock, or use --anyway"
        )
    return ""


def _early(letter: DeadLetter, cut: BucketClock | None) -> str:
    """Report that a message from the future may be refused again, where the end of that is unknown."""
    instant = _instant_ahead(letter)
    return (
        f"it becomes a dead letter again if its time, {moment(instant)}, is still in the future for its store"
        if instant and not cut
        else ""
    )


def _instant_ahead(letter: DeadLetter) -> int:
    """Give the instant of a message that was refused as one from the future; 0 for others."""
    if not Undecidable.TOO_NEW.is_reason(letter.reason) or letter.message is None:
        return 0
    return letter.message.instant or letter.message.former_instant


def moment(milliseconds: int) -> str:
    """Write an instant for people; the nearest that can be written for one before the year 1 or after 9999."""
    seconds = min(max(milliseconds // 1000, _FIRST), _LAST)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _why(answer: Answer, letter: DeadLetter) -> str:
    if answer is Answer.REFUSED:
        return f"endpoint {letter.endpoint!r} has no queue: run `onceonly topology create module:endpoint`, then retry"
    return "the broker did not confirm it. Retry it again, which is safe because the id stays the same"


async def _all(letters: DeadLetters, chosen: Filter) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await letters.page(chosen, after=after, limit=PAGE):
        for letter in page:
            yield letter
        after = page[-1].key
