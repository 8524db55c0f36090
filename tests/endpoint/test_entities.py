"""Handlers of entities: which entity they get, and what becomes of what they leave."""

# ruff: noqa: ARG001, ARG005 - handlers under test need not use what they are given

from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from onceonly import Context, Deleted, Message, entity
from onceonly.endpoint.host import host_of
from onceonly.formats.entities import LONGEST_UNIT
from onceonly.model.errors import HandlerFailed
from onceonly.model.message import Unreadable
from tests.endpoint.entity_harness import Counter, Deposit, bank
from tests.endpoint.harness import STILL, delivery


@dataclass
class Account:
    """An entity that is changed in place."""

    account_id: str
    balance: int = 0


@dataclass(frozen=True)
class Frozen:
    """An entity that is never changed, only replaced."""

    account_id: str
    balance: int = 0


class Packed(msgspec.Struct, array_like=True):
    """An entity that is written as an array."""

    account_id: str
    balance: int = 0


class Tagged(msgspec.Struct, tag=True, rename="camel"):
    """An entity with a tag, whose fields have other names in JSON."""

    account_id: str
    balance: int = 0


@attrs.define
class Attrs:
    """An entity of attrs."""

    account_id: str
    balance: int = 0


class Model(pydantic.BaseModel):
    """An entity of pydantic, whose key has another name in JSON."""

    account_id: str = pydantic.Field(alias="accountId")
    balance: int = 0


async def deposit(order: Deposit, account: Account) -> None:
    """Change it in place."""
    account.balance += order.amount


async def test_what_a_handler_changes_in_place_is_kept() -> None:
    """The whole idea, in two batches; the fresh one has its key."""
    counter = Counter(bank(deposit, entity=Account))
    await counter.deliver(Deposit("a", 5))
    assert await counter.state("Account/a") == {"account_id": "a", "balance": 5}
    await counter.deliver(Deposit("a", 2))
    assert await counter.state("Account/a") == {"account_id": "a", "balance": 7}


async def test_messages_of_one_batch_see_each_others_changes_and_other_entities_are_left_alone() -> None:
    """A unit is one entity."""
    counter = Counter(bank(deposit, entity=Account))
    report = await counter.deliver(Deposit("a", 5), Deposit("b", 1), Deposit("a", 2))
    assert report.handled == 3
    assert [(await counter.state(f"Account/{key}"))["balance"] for key in "ab"] == [7, 1]


async def test_a_copy_changes_nothing() -> None:
    """Its record is in the entity's own document."""
    counter = Counter(bank(deposit, entity=Account))
    message = counter.message(Deposit("a", 5))
    for _ in range(2):
        await counter.deliver(message)
    assert (await counter.state("Account/a"))["balance"] == 5


@pytest.mark.parametrize("kind", [Account, Frozen, Packed, Tagged, Attrs, Model])
async def test_every_kind_of_class_can_be_an_entity(kind: type[Any]) -> None:
    """Fresh, kept, read again, and replaced."""
    seen: list[Any] = []

    async def take(order: Deposit, account: kind) -> kind:  # type: ignore[valid-type]
        """Return another one."""
        seen.append(account)
        given = {name: getattr(account, name) for name in ("account_id", "balance")}
        made = {"accountId" if kind is Model else "account_id": given["account_id"]}
        return kind(**made, balance=given["balance"] + order.amount)

    counter = Counter(bank(take, entity=kind))
    await counter.deliver(Deposit("a", 5), Deposit("a", 1))
    await counter.deliver(Deposit("a", 1))
    assert await counter.letters() == ()
    assert [(type(each), each.account_id, each.balance) for each in seen] == [(kind, "a", balance) for balance in (0, 5, 6)]


async def test_who_asks_for_an_entity_or_none_is_told_that_there_is_none() -> None:
    """What it returns then exists."""
    seen: list[Frozen | None] = []

    async def open_account(order: Deposit, account: Frozen | None) -> Frozen | None:
        """Make one the first time, leave it as it is the second time."""
        seen.append(account)
        return None if account else Frozen(order.account_id, order.amount)

    counter = Counter(bank(open_account, entity=Frozen))
    await counter.deliver(Deposit("a", 5), Deposit("a", 9))
    assert seen == [None, Frozen("a", 5)]
    assert await counter.state("Frozen/a") == {"account_id": "a", "balance": 5}


async def test_returning_nothing_without_an_entity_makes_none() -> None:
    """Neither state nor failure."""

    async def look(order: Deposit, account: Frozen | None) -> None:
        """Make none."""

    counter = Counter(bank(look, entity=Frozen))
    assert (await counter.deliver(Deposit("a"))).handled == 1
    assert await counter.state("Frozen/a") is None


async def test_deleted_deletes_the_entity_and_the_next_message_begins_afresh() -> None:
    """The records of its messages outlive it."""

    async def close(order: Deposit, account: Account) -> Deleted | None:
        """Close the account when there is nothing left."""
        account.balance += order.amount
        return Deleted() if account.balance == 0 else None

    counter = Counter(bank(close, entity=Account))
    first = counter.message(Deposit("a", 5))
    await counter.deliver(first)
    await counter.deliver(Deposit("a", -5))
    assert await counter.state("Account/a") is None
    await counter.deliver(first)
    assert await counter.state("Account/a") is None
    await counter.deliver(Deposit("a", 3))
    assert (await counter.state("Account/a"))["balance"] == 3


async def test_what_was_only_looked_at_is_not_written() -> None:
    """A fresh one stays nothing, and fields that this version does not know stay."""

    async def look(order: Deposit, account: Account) -> None:
        """Change nothing."""

    async def give_back(order: Deposit, account: Account) -> Account:
        """Return it unchanged."""
        return account

    for handler, is_kept in ((look, False), (give_back, True)):
        counter = Counter(bank(handler, entity=Account))
        await counter.deliver(Deposit("a"))
        assert (await counter.state("Account/a") is not None) is is_kept
        await counter.put("Account/b", {"balance": 1, "account_id": "b", "newer": True})
        await counter.deliver(Deposit("b"))
        assert "newer" in await counter.state("Account/b")


@pytest.mark.parametrize(
    ("returned", "told"),
    [(5, "returned an int"), ({"balance": 1}, "returned a dict"), (Deleted, "the class Deleted"), (Frozen("a"), "a Frozen")],
)
async def test_returning_anything_else_is_a_failure_of_the_handler(returned: object, told: str) -> None:
    """And nothing is kept of it."""

    async def confused(order: Deposit, account: Account) -> object:
        """Change it, and return something."""
        account.balance = 9
        return returned

    counter = Counter(bank(confused, entity=Account))
    await counter.deliver(Deposit("a"))
    assert told in await counter.reason()
    assert await counter.state("Account/a") is None


@pytest.mark.parametrize("left", ["much", float("nan"), object()])
async def test_an_entity_that_could_not_be_read_again_is_not_written(left: Any) -> None:
    """Or else it would fail all messages that come after it."""

    async def confuse(order: Deposit, account: Account) -> None:
        """Leave what the class does not have."""
        account.balance = left if order.amount == 13 else account.balance + order.amount

    counter = Counter(bank(confuse, entity=Account))
    await counter.deliver(Deposit("a", 1), Deposit("a", 13), Deposit("a", 1))
    assert "Account" in await counter.reason()
    assert (await counter.state("Account/a"))["balance"] == 2


async def test_a_state_that_was_spoilt_by_hand_fails_its_messages_until_it_is_mended() -> None:
    """The reason names the entity and what is wrong with it."""
    counter = Counter(bank(deposit, entity=Account))
    await counter.put("Account/a", {"account_id": "a", "balance": "much"})
    await counter.deliver(Deposit("a"))
    reason = await counter.reason()
    assert "the stored state of Account/a cannot be read" in reason
    assert "balance" in reason
    await counter.put("Account/a", {"account_id": "a", "balance": 1})
    assert (await counter.deliver(Deposit("a"))).handled == 1


async def test_a_key_that_the_fresh_entity_cannot_have_is_the_messages_fault() -> None:
    """Dead at once."""

    @dataclass
    class Numbered:
        """An entity whose key is a number."""

        account_id: int

    async def take(order: Deposit, account: Numbered) -> None:
        """Never run."""

    counter = Counter(bank(take, entity=Numbered))
    await counter.deliver(Deposit("a"))
    assert (await counter.reason()).startswith("cannot create a new Numbered for Numbered/a: ")


async def test_a_failing_message_is_left_out_and_undone() -> None:
    """The others of its entity are kept, in one unit."""

    async def take(order: Deposit, account: Account) -> None:
        """Fail half-way, in place."""
        account.balance += order.amount
        if order.amount == 13:
            raise ValueError("unlucky")

    counter = Counter(bank(take, entity=Account))
    report = await counter.deliver(Deposit("a", 1), Deposit("a", 13), Deposit("a", 2))
    assert (report.handled, await counter.reason()) == (2, "ValueError: unlucky")
    assert (await counter.state("Account/a"))["balance"] == 3


async def test_a_second_attempt_gets_a_body_that_the_first_one_did_not_touch() -> None:
    """The body is decoded when it is read, and given away once."""
    made: list[str] = []
    seen: list[list[str]] = []

    @dataclass
    class Basket:
        """A message that can be changed."""

        account_id: str
        items: list[str] = field(default_factory=list)

        def __post_init__(self) -> None:
            made.append(self.account_id)

    @dataclass
    class Shelf:
        """An entity without its key."""

        balance: int = 0

    async def take(basket: Basket, shelf: Shelf) -> None:
        """Change the message, and fail the bad one."""
        seen.append(list(basket.items))
        basket.items.append("more")
        if basket.account_id == "bad":
            raise ValueError

    counter = Counter(bank(take, entity=Shelf, key=lambda basket: "one"))
    good, bad = counter.message(Basket("good")), counter.message(Basket("bad"))
    made.clear()
    await counter.deliver(good)
    assert (made, seen) == (["good"], [[]])
    await counter.deliver(counter.message(Basket("good")), bad)
    assert seen == [[]] * 5  # both, and both again in a unit where the bad one can be undone


async def test_def_handlers_context_and_providers_go_together_with_entities() -> None:
    """In any order of parameters."""

    class Mailer:
        """Something a provider makes."""

    made = bank()

    @made.provide(scope="message")
    async def mailer(context: Context) -> AsyncIterator[Mailer]:
        """Make it for each message."""
        yield Mailer()

    @made.handler(entity=Account, key="account_id")
    def take(order: Deposit, context: Context, mailer: Mailer, account: Account) -> None:
        """Use them all."""
        assert isinstance(mailer, Mailer)
        account.balance += order.amount
        context.publish({"balance": account.balance}, type="balance")

    counter = Counter(made)
    assert (await counter.deliver(Deposit("a", 5))).handled == 1
    assert (await counter.state("Account/a"))["balance"] == 5


class Colour(Enum):
    """An enum of texts."""

    RED = "red"


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (str, "a/b c", "a/b c"),
        (int, 0, "0"),
        (UUID, "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (Colour, "red", "red"),
    ],
)
def test_a_key_is_a_text_a_number_a_uuid_or_an_enum(kind: Any, value: object, key: str) -> None:
    """It names the unit, behind the entity's name."""

    class Paint(msgspec.Struct):
        """A message with a key of this kind."""

        account_id: kind

    async def take(paint: Paint, account: Account) -> None:
        """Never run."""

    found = host_of(bank(take, entity=Account, type="Paint")).handlers(STILL).read(incoming({"account_id": value}))
    assert isinstance(found, Message)
    assert found.unit == f"Account/{key}"


def incoming(body: object, type_: str = "Paint") -> Any:
    """Make a delivery of these JSON values."""
    return delivery(msgspec.json.encode(body), ce_id="1", ce_source="web", ce_type=type_)


def read_dict(body: object, key: Any = "account_id") -> Message | Unreadable:
    """Read a message that is a dict."""

    async def take(paint: dict[str, Any], account: Account | None) -> None:
        """Never run."""

    return host_of(bank(take, entity=Account, key=key, type="Paint")).handlers(STILL).read(incoming(body))


def test_a_function_tells_the_key_of_any_message() -> None:
    """Of a dict too."""
    found = read_dict({"who": {"id": 7}}, key=lambda body: body["who"]["id"])
    assert isinstance(found, Message)
    assert found.unit == "Account/7"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "its key is None"),
        ({"account_id": None}, "its key is None"),
        ({"account_id": ""}, "its key is empty"),
        ({"account_id": True}, "its key is a bool"),
        ({"account_id": 1.5}, "its key is a float"),
        ({"account_id": "\0"}, "NUL"),
        ({"account_id": "x" * LONGEST_UNIT}, f"the limit is {LONGEST_UNIT}"),
        ([], "the body is not a valid dict"),
    ],
)
def test_a_message_without_a_key_is_unreadable(body: object, told: str) -> None:
    """With its identity, for the dead letters."""
    found = read_dict(body)
    assert isinstance(found, Unreadable)
    assert told in found.reason
    assert found.message is not None
    assert found.message.id == "1"


def test_a_key_as_long_as_the_limit_is_fine() -> None:
    """In bytes, with the name."""
    found = read_dict({"account_id": "x" + "é" * ((LONGEST_UNIT - len("Account/x")) // 2)})
    assert isinstance(found, Message)
    assert len(found.unit.encode()) == LONGEST_UNIT


def test_a_function_that_fails_makes_its_message_unreadable() -> None:
    """Whatever it raises, in words that every store takes."""

    def key(body: dict[str, Any]) -> str:
        raise RuntimeError("no\0key")

    found = read_dict({}, key=key)
    assert isinstance(found, Unreadable)
    assert found.reason == "cannot determine the key of its Account: RuntimeError: no\\0key"


async def test_a_message_without_a_key_is_a_dead_letter() -> None:
    """The others of its batch are handled."""
    counter = Counter(bank(deposit, entity=Account))
    report = await counter.deliver(Deposit(""), Deposit("a"))
    assert (report.handled, await counter.reason()) == (1, "Deposit: its key is empty")


def test_an_entity_may_be_named() -> None:
    """A subclass has its own name."""

    @entity("bank.account.v1")
    @dataclass
    class Named(Account):
        """An entity with a name."""

    async def take(paint: dict[str, Any], account: Named | None) -> None:
        """Never run."""

    found = host_of(bank(take, entity=Named, type="Paint")).handlers(STILL).read(incoming({"account_id": "a"}))
    assert isinstance(found, Message)
    assert found.unit == "bank.account.v1/a"


@pytest.mark.parametrize("name", ["", " ", "a/b"])
def test_an_impossible_name_is_refused(name: str) -> None:
    """A slash is what keeps name and key apart."""
    with pytest.raises(ValueError, match="@entity needs a name"):
        entity(name)


def test_other_handlers_of_the_endpoint_have_no_entity() -> None:
    """Their messages have no unit, and are not decoded when they are read."""
    made = bank(deposit, entity=Account)

    @made.handler(type="Paint")
    async def paint(body: dict[str, Any]) -> None:
        """Have nothing to do with accounts."""

    found = host_of(made).handlers(STILL).read(incoming("no dict"))
    assert isinstance(found, Message)
    assert found.unit == ""


async def test_a_store_without_entities_fails_the_handler_in_words() -> None:
    """It is refused at start where that is known."""
    made = bank(deposit, entity=Account)
    handlers = host_of(made).handlers(STILL)
    found = handlers.read(incoming({"account_id": "a"}, "Deposit"))
    assert isinstance(found, Message)

    class Nothing:
        """Resources of nothing."""

        def get(self, kind: type) -> object:
            raise LookupError(f"no {kind.__name__}")

        def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
            return None

        def attempt(self, _handler: str = "") -> AbstractAsyncContextManager[None]:
            return nullcontext()

        def is_busy(self) -> bool:
            return False

        async def run_sync(self, function: Any, *, is_last: bool = False) -> object:
            return function(self.get)

    with pytest.raises(HandlerFailed, match="LookupError: no Entities"):
        await handlers.handle(found, Nothing())
