"""Actions on dead letters, with real handlers, claims and stored actions."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest
from msgspec.structs import replace

from onceonly import Endpoint, Retry
from onceonly.assembly import open_transport
from onceonly.assembly.operations import OpenedOperations, open_operations
from onceonly.model.action import Action, ActionKind, ActionScope, ActionState, ItemOutcome
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.operations.action_runner import ActionRunner
from onceonly.operations.actions import EVERY_LETTER, ActionParts, Operator, action_log_of, confirm, new_action, read_outcomes
from onceonly.operations.edits import (
    FILE_LIMIT,
    Edit,
    body_from_form,
    decoding_check,
    edit,
    is_earlier_body,
    restore,
    send_as_new,
)
from onceonly.operations.knowledge import know
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly.ports.transport import Transport

T = TypeVar("T")
ANA = Operator("ana", "cli")
HEAD_START = 0.3


@dataclass
class PlaceOrder:
    """A command."""

    order_id: str
    total: int


class Shop:
    """An endpoint that runs, and what operators work on. A negative total is rejected while the shop is `strict`."""

    def __init__(self, file: Path) -> None:
        self.transport_url = f"memory://{uuid4()}"
        self.endpoint = Endpoint(
            "shop", store=f"sqlite:///{file}", transport=self.transport_url, retry=Retry(immediate=0, delayed=0)
        )
        self.handled: Counter[str] = Counter()
        self.totals: list[int] = []
        self.strict = True
        self.parts: ActionParts
        self.opened: OpenedOperations
        self.transport: Transport

        @self.endpoint.handler
        async def place(order: PlaceOrder) -> None:
            if self.strict and order.total < 0:
                raise ValueError(f"total {order.total} of {order.order_id} is below zero")
            self.handled[order.order_id] += 1
            self.totals.append(order.total)

    async def send(self, *orders: tuple[str, int], at: int = 0) -> None:
        """Send orders with ids of their own."""
        sends = [Send(message=order(name, total), to="shop", due=at) for name, total in orders]
        assert set(await self.transport.send(sends)) == {Answer.TAKEN}

    async def letters(self, count: int) -> tuple[DeadLetter, ...]:
        """Wait for this number of letters."""
        return await until(lambda: self.parts.letters.page(Filter(endpoint="shop")), lambda found: len(found) == count)

    async def run(self, kind: ActionKind, scope: ActionScope = EVERY_LETTER, *, reason: str = "") -> Action:
        """Confirm and run."""
        action = await confirm(self.parts, new_action(ANA, kind, "shop", scope, reason=reason))
        return await ActionRunner(self.parts).run(action.position)

    async def settled(self, action: Action) -> list[ItemOutcome]:
        """Wait until no item is waiting."""
        items = await until(
            lambda: read_outcomes(self.parts, action),
            lambda found: not any(item.outcome is ItemOutcome.WAITING for item in found),
        )
        return [item.outcome for item in items]


def order(name: str, total: int) -> Message:
    """Make an order."""
    body = f'{{"order_id": "{name}", "total": {total}}}'.encode()
    return Message(id=name, source="web", type="PlaceOrder", body=body)


async def until(read: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> T:
    """Read until it is so."""
    async with asyncio.timeout(60):
        while not is_so(found := await read()):  # noqa: ASYNC110 - a database has no event
            await asyncio.sleep(0.02)
        return found


@pytest.fixture
async def shop(file: Path) -> AsyncIterator[Shop]:
    """Run it."""
    shop = Shop(file)
    async with (
        shop.endpoint.running(),
        open_operations(shop.endpoint.settings) as opened,
        open_transport(shop.transport_url, "shop") as transport,
    ):

        async def known(messages: Sequence[Message]) -> Sequence[object]:
            return await know(opened, messages)

        shop.opened, shop.transport = opened, transport
        shop.parts = ActionParts(
            letters=opened.letters,
            log=action_log_of(opened.letters),
            endpoint="shop",
            transport=transport,
            know=known,  # type: ignore[arg-type]
            head_start=HEAD_START,
        )
        yield shop


async def test_a_retry_is_handled_once_and_leaves_a_trail(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Row, items and log say who did what; the outcome is read from the claim."""
    caplog.set_level(logging.INFO, "onceonly.audit")
    await shop.send(("A-1", -1), ("A-2", -2))
    await shop.letters(2)
    shop.strict = False
    action = await shop.run(ActionKind.RETRY, reason="fixed")
    assert (action.state, action.total, action.done, action.kept) == (ActionState.DONE, 2, 2, 0)
    assert await shop.settled(action) == [ItemOutcome.HANDLED] * 2
    assert shop.handled == {"A-1": 1, "A-2": 1}
    assert await shop.parts.letters.count(Filter()) == 0
    stored = await shop.parts.log.get(action.position)
    assert stored is not None
    assert (stored.actor, stored.method, stored.action, stored.reason) == ("ana", "cli", ActionKind.RETRY, "fixed")
    ((of, item),) = await shop.parts.log.of_message("shop", order("A-1", -1).identity)
    assert (of.position, item.outcome) == (action.position, ItemOutcome.HANDLED)
    assert [record.getMessage().split()[:3] for record in caplog.records if record.name == "onceonly.audit"] == [
        ["operator", "action", "started"],
        ["operator", "action", "ended"],
    ]


async def test_a_message_that_fails_again_is_reported(shop: Shop) -> None:
    """Its letter is there again."""
    await shop.send(("A-1", -1))
    await shop.letters(1)
    action = await shop.run(ActionKind.RETRY)
    await shop.letters(1)
    assert await shop.settled(action) == [ItemOutcome.FAILED_AGAIN]


async def test_letters_that_come_after_the_confirmation_are_not_touched(shop: Shop) -> None:
    """The scope ends at the last position."""
    await shop.send(("A-1", -1))
    await shop.letters(1)
    action = await confirm(shop.parts, new_action(ANA, ActionKind.DELETE, "shop"))
    await shop.send(("A-2", -2))
    await shop.letters(2)
    ended = await ActionRunner(shop.parts).run(action.position)
    assert (ended.total, ended.done) == (1, 1)
    (left,) = await shop.letters(1)
    assert left.message is not None
    assert left.message.id == "A-2"


async def test_an_edited_message_is_handled_once(shop: Shop) -> None:
    """The late copy with the old body is a payload mismatch, which can be annotated."""
    await shop.send(("A-1", -30))
    (letter,) = await shop.letters(1)
    fixed = Edit(body=b'{"order_id": "A-1", "total": 30}')
    action = await edit(shop.parts, ANA, letter.key[:9], fixed, reason="wrong sign", check=decoding_check(shop.endpoint))
    assert await shop.settled(action) == [ItemOutcome.HANDLED]
    assert shop.totals == [30]
    (known,) = await know(shop.opened, [order("A-1", 30)])
    assert known.fingerprint == order("A-1", 30).fingerprint
    await shop.send(("A-1", -30))
    (late,) = await shop.letters(1)
    assert "another body" in late.reason
    ((_, item),) = await shop.parts.log.of_message("shop", order("A-1", 0).identity)
    assert is_earlier_body(item, late)
    assert shop.totals == [30]


@pytest.mark.parametrize("first", ["retry", "edit"])
async def test_a_retry_raced_with_an_edit_has_one_effect(shop: Shop, first: str) -> None:
    """Both are sent; the first body that commits wins."""
    await shop.send(("A-1", -30))
    (letter,) = await shop.letters(1)
    shop.strict = False
    change = edit(shop.parts, ANA, letter.key, Edit(body=b'{"order_id": "A-1", "total": 30}'), reason="sign")
    again = shop.run(ActionKind.RETRY, ActionScope(keys=(letter.key,)))
    both = (again, change) if first == "retry" else (change, again)
    results = await asyncio.gather(*both, return_exceptions=True)
    assert not [each for each in results if isinstance(each, BaseException) and not isinstance(each, SetupError)]
    await until(lambda: asyncio.sleep(0, shop.handled["A-1"]), lambda count: count > 0)
    found = [await shop.settled(each) for each in results if isinstance(each, Action)]
    assert shop.handled == {"A-1": 1}
    assert [outcome for some in found for outcome in some].count(ItemOutcome.HANDLED) == 1


async def test_of_two_retries_one_keeps_a_letter_that_is_gone_or_both_are_harmless(shop: Shop) -> None:
    """In two tabs at once."""
    await shop.send(("A-1", -1))
    (letter,) = await shop.letters(1)
    shop.strict = False
    retry = new_action(ANA, ActionKind.RETRY, scope=ActionScope(keys=(letter.key,)))
    first, second = [await confirm(shop.parts, retry) for _ in range(2)]
    done = [await ActionRunner(shop.parts).run(each.position) for each in (first, second)]
    assert [(each.done, each.kept) for each in done] == [(1, 0), (0, 1)]
    (kept,) = await shop.parts.log.items(second.position)
    assert (kept.outcome, kept.detail) == (ItemOutcome.KEPT, "letter is gone")
    assert await shop.settled(first) == [ItemOutcome.HANDLED]
    assert shop.handled == {"A-1": 1}


class CrashingLetters:
    """Dead letters that cannot be deleted: the process ends between sending and deleting."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    def __getattr__(self, name: str) -> object:
        return getattr(self._letters, name)

    async def remove(self, keys: Sequence[str]) -> int:
        """Crash."""
        raise CommitFailed(f"no connection for {len(keys)} letters")


async def test_a_crash_between_sending_and_deleting_has_one_effect(shop: Shop) -> None:
    """The next runner repeats the planned items. There is one item for the letter."""
    await shop.send(("A-1", -1))
    (letter,) = await shop.letters(1)
    shop.strict = False
    action = await confirm(shop.parts, new_action(ANA, ActionKind.RETRY, scope=ActionScope(keys=(letter.key,))))
    crashing = replace(shop.parts, letters=CrashingLetters(shop.parts.letters))
    with pytest.raises(CommitFailed):
        await ActionRunner(crashing, name="one").run(action.position)
    blocked = await ActionRunner(shop.parts, name="two").run(action.position)
    assert blocked.runner == "one"  # its lease is not over
    ended = await ActionRunner(shop.parts, name="one").run(action.position)
    assert (ended.state, ended.done, ended.kept) == (ActionState.DONE, 1, 0)
    assert await shop.settled(ended) == [ItemOutcome.HANDLED]
    assert shop.handled == {"A-1": 1}


async def test_a_probe_with_a_failing_handler_sends_three(shop: Shop) -> None:
    """And stops. The others stay."""
    names = [(f"A-{number}", -1) for number in range(8)]
    await shop.send(*names)
    before = {each.key: each.at for each in await shop.letters(8)}
    action = await shop.run(ActionKind.RETRY, ActionScope(probe=3))
    assert (action.state, action.done) == (ActionState.STOPPED, 3)
    after = await shop.letters(8)
    assert sum(each.at > before[each.key] for each in after) == 3


async def test_a_probe_goes_on_when_its_letters_are_handled(shop: Shop) -> None:
    """All are sent."""
    await shop.send(*[(f"A-{number}", -1) for number in range(8)])
    await shop.letters(8)
    shop.strict = False
    action = await shop.run(ActionKind.RETRY, ActionScope(probe=3))
    assert (action.state, action.done) == (ActionState.DONE, 8)
    assert set(await shop.settled(action)) == {ItemOutcome.HANDLED}
    assert set(shop.handled.values()) == {1}


async def test_deleted_letters_are_restored(shop: Shop) -> None:
    """With their keys and their times. The restored letter can be retried."""
    await shop.send(("A-1", -1), ("A-2", -2))
    before = await shop.letters(2)
    action = await shop.run(ActionKind.DELETE, reason="noise")
    await shop.letters(0)
    assert [item.outcome for item in await shop.parts.log.items(action.position)] == [ItemOutcome.DELETED] * 2
    with pytest.raises(SetupError, match="no letter to restore"):
        await restore(shop.parts, ANA, action.position, "nonsense")
    with pytest.raises(SetupError, match="not a deletion"):
        await restore(shop.parts, ANA, 999)
    undone = await restore(shop.parts, ANA, action.position)
    assert undone.done == 2
    assert await shop.letters(2) == before


async def test_an_edit_is_refused_with_a_reason_that_is_stored(shop: Shop) -> None:
    """Each refusal has its row. Nothing is sent."""
    letters = {
        "finish only": replace(letter_of(order("A-1", 1)), finish_only=True),
        "no identity": replace(letter_of(order("A-2", 1)), message=None),
        "not UTF-8": letter_of(replace(order("A-3", 1), body=b"\xff")),
        "limit is": letter_of(replace(order("A-4", 1), body=b" " * ((1 << 20) + 1))),
        "needs a reason": letter_of(order("A-5", 1)),
        "cannot be handled": letter_of(order("A-6", 1)),
        "was handled": letter_of(order("A-7", 1)),
    }
    await shop.send(("A-7", 2))
    await until(lambda: asyncio.sleep(0, shop.handled["A-7"]), bool)
    for each in letters.values():
        await shop.parts.letters.add(each)
    check = decoding_check(shop.endpoint)
    for why, each in letters.items():
        body = b"nonsense" if why == "cannot be handled" else b"{}"
        reason = "" if why == "needs a reason" else "r"
        with pytest.raises(SetupError, match=why):
            await edit(shop.parts, ANA, each.key, Edit(body=body), reason=reason, check=check)
        (row, *_) = await shop.parts.log.recent(limit=1)
        assert (row.state, row.action, why in row.reason) == (ActionState.REFUSED, ActionKind.EDIT, True)
    assert await shop.parts.letters.count(Filter()) == len(letters)


@pytest.mark.parametrize("before", [b"\xff", b" " * ((1 << 20) + 1)], ids=["not UTF-8", "over 1 MiB"])
async def test_a_body_of_a_file_replaces_one_that_no_form_shows(shop: Shop, before: bytes) -> None:
    """Any bytes, up to the limit of files, and of the transport if that is lower."""
    found = letter_of(replace(order("A-1", 1), body=before))
    await shop.parts.letters.add(found)
    limit = min(FILE_LIMIT, shop.transport.traits.max_body)
    with pytest.raises(SetupError, match=f"the limit is {limit:,}"):
        await edit(shop.parts, ANA, found.key, Edit(body=b" " * (limit + 1)), reason="r", from_file=True)
    action = await edit(shop.parts, ANA, found.key, Edit(body=order("A-1", 7).body), reason="r", from_file=True)
    assert await shop.settled(action) == [ItemOutcome.HANDLED]
    assert (shop.totals, action.done) == ([7], 1)


async def test_a_payload_mismatch_is_sent_as_a_new_message(shop: Shop) -> None:
    """Under an id of its own, the same for each attempt. A letter that can be retried is refused."""
    await shop.send(("A-1", 1))
    await until(lambda: asyncio.sleep(0, shop.handled["A-1"]), bool)
    await shop.send(("A-1", 2), ("A-2", -1))
    letters = {each.message.id: each for each in await shop.letters(2) if each.message}
    with pytest.raises(SetupError, match="not a payload mismatch"):
        await send_as_new(shop.parts, ANA, letters["A-2"].key, reason="r")
    action = await send_as_new(shop.parts, ANA, letters["A-1"].key, reason="two orders")
    assert await shop.settled(action) == [ItemOutcome.HANDLED]
    assert sorted(shop.totals) == [1, 2]


def letter_of(message: Message) -> DeadLetter:
    """Make a letter."""
    return DeadLetter(endpoint="shop", reason="no", headers=(), body=message.body, message=message)


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (b'{"a":\n1}', '{"a":\r\n1}', b'{"a":\n1}'),
        (b'{"a":\r\n1}', '{"a":\r\n1}', b'{"a":\r\n1}'),
        (b"a\rb", "a\r\nb\r\n", b"a\rb\r"),
        ("π 1.0  ".encode(), "π 1.0  ", "π 1.0  ".encode()),
        ("\ufeffa".encode(), "\ufeffa", "\ufeffa".encode()),
        (b"one", "one\r\ntwo", b"one\ntwo"),
    ],
)
def test_a_form_keeps_the_bytes(before: bytes, text: str, after: bytes) -> None:
    """An unchanged text has the same fingerprint."""
    assert body_from_form(before, text) == after


@pytest.mark.parametrize("before", [b"a\r\nb\nc", b"a\rb\nc"])
def test_mixed_line_ends_are_refused(before: bytes) -> None:
    """A form cannot keep them."""
    with pytest.raises(SetupError, match="different line ends"):
        body_from_form(before, "a")
