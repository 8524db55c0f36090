"""What endpoints would leave behind if the library were removed: how much, until when it matters, and what to do about it."""

from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct

from onceonly.assembly import open_dead_letters, open_store, open_transport
from onceonly.assembly.stores import read_only, read_remains
from onceonly.cli.endpoint_status import count_left_behind
from onceonly.cli.targets import connection_errors
from onceonly.config.endpoint import Settings
from onceonly.model.errors import QueueMissing, SetupError
from onceonly.model.wording import in_words
from onceonly.ports.dead_letters import Filter
from onceonly.ports.measurements import StoredRemains

MOST = 100_000
"""Rows of a table are counted up to here."""
MOST_LISTED = 1000
"""Records in documents are counted up to here. Each costs a read."""
SENDS = "run the endpoint or `onceonly relay module:endpoint`, which send their messages"
SHARED = "of all endpoints of these tables"
_ALWAYS = 1 << 52
"""An instant later than any commit."""


class Remainder(Struct, frozen=True, kw_only=True):
    """Something that is left. `count` is None if it is unknown; with `more` it is a lower limit.

    `expires` is when the last of it is not needed any more, None if that is not a matter of time. `matters` is whether the
    library must not be removed yet. `whose` is set if the number is not that of the endpoint alone.
    """

    what: str
    count: int | None
    matters: bool
    to_do: str = ""
    expires: datetime | None = None
    more: bool = False
    whose: str = ""


class Departure(Struct, frozen=True, kw_only=True):
    """What an endpoint would leave behind. `clear` is whether the library can be removed."""

    endpoint: str
    clear: bool
    remainders: tuple[Remainder, ...]


async def read_departure(settings: Settings) -> Departure:
    """Read what is left of an endpoint. Changes nothing. Raises SetupError, which names the endpoint; RetryableError."""
    try:
        found = (*await _queue(settings), *await _stored(settings), *await _dead_letters(settings))
    except SetupError as error:
        raise type(error)(f"endpoint {settings.name!r}: {error}") from error
    return Departure(endpoint=settings.name, clear=not any(each.matters for each in found), remainders=found)


async def _queue(settings: Settings) -> list[Remainder]:
    url = read_only(settings.transport)
    async with connection_errors("transport", url), open_transport(url, settings.name) as transport:
        try:
            depth = await transport.depth(settings.name)
        except QueueMissing:
            return [_counted("messages in the queue", 0)]
    return [
        _counted("messages in the queue", depth.waiting + depth.held, "handle them: `onceonly run module:endpoint --drain`"),
        _counted(
            "delayed messages",
            depth.delayed,
            "retries and messages with a delay: run the endpoint until they are handled",
        ),
    ]


async def _stored(settings: Settings) -> list[Remainder]:
    if not settings.store_plan.has_tables:
        return [*_on_documents(settings, await _count_pending(settings)), *await _elsewhere(settings)]
    async with connection_errors("store", settings.store):
        remains = await read_remains(settings.store, settings.name, MOST)
    if remains is None:
        return [_counted("tables", 0), *await _elsewhere(settings)]
    return [*_rows(settings, remains), *await _elsewhere(settings)]


def _rows(settings: Settings, remains: StoredRemains) -> Iterator[Remainder]:
    mode = settings.plan.claims
    sends = SENDS
    if not mode.decides:
        sends = "not sent with this setting. Run the endpoint or a relay with History() until they are, or delete them"
    yield _counted("pending records", remains.records, sends)
    wait = "wait: a copy that comes before is known only as long as the endpoint runs. After that nothing needs them"
    yield _lasting("claims", remains.claims, _after(remains.last_claim, remains.retention), remains.now, wait, mode.decides)
    kept = 0 if settings.retention is None else round(settings.retention.total_seconds() * 1000)
    repeats = "wait: a client that repeats a request before gets the stored answer"
    yield _lasting("idempotency keys", remains.keys, _after(remains.last_key, kept), remains.now, repeats, True)  # noqa: FBT003
    if settings.plan.tokens_in_store:
        yield _counted("live tokens", remains.tokens, "handle the messages that they belong to", whose=SHARED)
    yield _counted("entities", remains.entities, "copy their states into tables of your own", whose=SHARED)
    yield _counted("open attempts", remains.reservations, "run the endpoint: the janitor ends them")


async def _count_pending(settings: Settings) -> int | None:
    """Count the records in documents that list what is pending. None if these do not."""
    if not settings.places.store.is_shared or not settings.plan.records or not settings.store_plan.is_searchable:
        return None
    async with connection_errors("store", settings.store), open_store(settings) as opened:
        return None if opened.pending is None else len(await opened.pending.undispatched(_ALWAYS, MOST_LISTED))


def _on_documents(settings: Settings, pending: int | None) -> Iterator[Remainder]:
    """Yield what is left in documents: the pending ones if they are listed, and what cannot be counted."""
    place = settings.places.store
    if not place.is_shared:
        yield Remainder(
            what="store", count=None, matters=False, to_do=f"{place} exists only in the memory of the process that runs it"
        )
        return
    if pending is not None:
        yield _counted("pending records", pending, SENDS, more=pending >= MOST_LISTED)
    else:
        yield Remainder(
            what="pending records",
            count=None,
            matters=True,
            to_do="not listed. Each has a message in the queue: there are none when the queue stays empty",
        )
    kept = "" if settings.retention is None else f", {in_words(settings.retention)} after the last message"
    yield Remainder(
        what="claims and keys",
        count=None,
        matters=True,
        to_do=f"documents are not searched. Nothing needs them{kept or ' when no copy comes any more'}",
    )
    yield Remainder(
        what="entities", count=None, matters=True, to_do="documents are not searched. Copy their states if you need them"
    )


async def _elsewhere(settings: Settings) -> list[Remainder]:
    """Return what is in a dedup store or a token store of its own."""
    found = await count_left_behind(settings)
    more = found.get("more", ())
    left: list[Remainder] = []
    if (marks := found.get("marks")) is not None:
        kept = settings.retention
        words = f"wait {in_words(kept)} after the last message" if kept is not None else "wait"
        left.append(
            _counted("marks in the dedup store", marks, words, more="marks" in more, whose="of all endpoints that use it")
        )
    if not settings.plan.tokens_in_store:
        for name, words in (("live", "handle the messages that they belong to"), ("prepared", "run the janitor")):
            if (count := found.get(name)) is not None:
                left.append(_counted(f"{name} tokens", count, words, more=name in more))
    if (attempts := found.get("attempts")) is not None and not settings.store_plan.has_tables:
        left.append(_counted("open attempts", attempts, "run the endpoint: the janitor ends them", more="attempts" in more))
    return left


async def _dead_letters(settings: Settings) -> list[Remainder]:
    setting = settings.store if settings.dead_letters is None else settings.dead_letters
    place = read_only(setting)
    async with connection_errors("dead_letters", place), open_dead_letters(place) as letters:
        count = await letters.count(Filter(endpoint=settings.name))
    found = [_counted("dead letters", count, "retry, export or purge them: `onceonly dead list module:endpoint`")]
    async with connection_errors("dead_letters", place):
        remains = await read_remains(setting, settings.name, MOST, role="dead_letters")
    if remains is not None:
        found.append(_counted("running actions of operators", remains.actions, "wait for them, or stop them in the dashboard"))
    return found


def _counted(what: str, count: int, to_do: str = "", *, matters: bool = True, more: bool = False, whose: str = "") -> Remainder:
    more = more or count >= MOST
    said = to_do if count else ""
    return Remainder(what=what, count=count, matters=matters and count > 0, to_do=said, more=more, whose=whose)


def _lasting(  # noqa: PLR0917 - one line of the table
    what: str,
    count: int,
    expires: int,
    now: int,
    to_do: str,
    matters: bool,  # noqa: FBT001 - the same
) -> Remainder:
    """Return what is not needed any more after an instant, whether the janitor has deleted it or not."""
    is_over = not count or expires <= now
    return Remainder(
        what=what,
        count=count,
        matters=matters and not is_over,
        to_do="" if is_over else to_do,
        expires=_instant(expires) if count else None,
        more=count >= MOST,
        whose=SHARED,
    )


def _after(stored_at: int, retention: int) -> int:
    return stored_at + retention


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds // 1000, UTC)
