"""What is said about a handler of entities is judged at start, with what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from onceonly import Context, Endpoint, entity
from onceonly.adapters import memory
from onceonly.endpoint.host import host_of
from onceonly.endpoint.plans import plan
from onceonly.errors import InvalidHandler
from onceonly.systems import Offer
from tests.endpoint.entity_harness import Deposit
from tests.endpoint.harness import STILL, endpoint

DOCUMENTS, MEMORY = Offer(entities=True), memory.SYSTEM.offer


@dataclass
class Account:
    """An entity."""

    account_id: str
    balance: int = 0


@dataclass
class Owned:
    """An entity with a field that has no default."""

    account_id: str
    owner: str
    tags: list[str] = field(default_factory=list)


def problems(made: Endpoint, offer: Offer = DOCUMENTS) -> list[str]:
    """List what is wrong with an endpoint's handlers on a store that offers this."""
    with pytest.raises(InvalidHandler) as caught:
        plan(made._registered.handlers, made._registered.providers, endpoint="bank", offer=offer)
    return [line.removeprefix("  * ") for line in str(caught.value).splitlines()[1:]]


def problem_of(handler: Callable[..., Any], offer: Offer = DOCUMENTS, **said: Any) -> str:
    """Return the one problem of one handler."""
    made = endpoint()
    made.handler(**({"entity": Account, "key": "account_id"} | said))(handler)
    (problem,) = problems(made, offer)
    return problem


async def deposit(order: Deposit, account: Account) -> None:
    """Do nothing."""


async def test_entity_and_key_belong_together() -> None:
    """One without the other means nothing."""
    assert "must be used together" in problem_of(deposit, key=None)
    made = endpoint()
    made.handler(entity=None, key="account_id")(deposit)
    assert "must be used together" in problems(made)[0]


@pytest.mark.parametrize("kind", [dict, bytes, str, list[Account], object])
async def test_an_entity_is_of_a_class_that_can_be_written(kind: Any) -> None:
    """As messages are, but of no class without a name."""

    async def take(order: Deposit, account: kind) -> None:
        """Do nothing."""

    told = "entity= must be a dataclass, a msgspec struct, a pydantic model, an attrs class, not"
    assert told in problem_of(take, entity=kind)


async def test_a_class_with_a_field_that_json_does_not_have_is_refused() -> None:
    """With the words of who reads it."""

    @dataclass
    class Odd:
        """A class that cannot be read."""

        either: int | UUID | Deposit | Account

    async def take(order: Deposit, odd: Odd) -> None:
        """Do nothing."""

    assert "entity=Odd: Odd cannot be decoded from JSON" in problem_of(take, entity=Odd)


async def test_a_key_names_a_field_of_the_message_or_is_a_function() -> None:
    """The fields it has are named."""
    assert "Deposit has no such field; it has account_id, amount" in problem_of(deposit, key="account")
    assert "not 5" in problem_of(deposit, key=5)

    async def take(order: bytes, account: Account) -> None:
        """Do nothing."""

    assert "a message of type bytes has no fields" in problem_of(take, type="x")


async def test_a_property_of_the_message_can_be_the_key() -> None:
    """Whatever the message has by that name."""

    @dataclass
    class Transfer:
        """A message whose key is computed."""

        iban: str

        @property
        def account_id(self) -> str:
            """Return the last digits."""
            return self.iban[-4:]

    async def take(order: Transfer, account: Account) -> None:
        """Do nothing."""

    made = endpoint()
    made.handler(entity=Account, key="account_id")(take)
    host_of(made).handlers(STILL)


async def test_one_parameter_takes_the_entity() -> None:
    """By its annotation."""

    async def none(order: Deposit) -> None:
        """Take none."""

    async def two(order: Deposit, one: Account, other: Account | None) -> None:
        """Take two."""

    assert "one parameter takes the entity: annotate it with Account, or Account | None" in problem_of(none)
    made = endpoint()
    made.handler(entity=Account, key="account_id")(two)
    assert any("one parameter takes the entity" in each for each in problems(made))


async def test_an_entity_that_cannot_be_made_afresh_is_refused_unless_none_will_do() -> None:
    """The fields without a default are named; the key is filled."""

    async def take(order: Deposit, account: Owned) -> None:
        """Do nothing."""

    assert "account: a new Owned cannot be created, because owner has no default" in problem_of(take, entity=Owned)

    async def by_function(order: Deposit, account: Account) -> None:
        """Do nothing."""

    assert "because account_id has no default" in problem_of(by_function, key=lambda order: order.account_id)

    async def optional(order: Deposit, account: Optional[Owned]) -> None:  # noqa: UP045 - the older way to say so
        """Do nothing."""

    made = endpoint()
    made.handler(entity=Owned, key="account_id")(optional)
    host_of(made).handlers(STILL)


@attrs.define
class AttrsOwned:
    """An attrs class with a field that has no default."""

    account_id: str
    owner: str


class StructOwned(msgspec.Struct):
    """A struct with a field that has no default."""

    account_id: str
    owner: str


class ModelOwned(pydantic.BaseModel):
    """A pydantic model with a field that has no default."""

    account_id: str = pydantic.Field(alias="accountId")
    owner: str


@pytest.mark.parametrize("kind", [AttrsOwned, StructOwned, ModelOwned])
async def test_fields_without_defaults_are_found_in_every_kind_of_class(kind: Any) -> None:
    """Whoever made the class."""

    async def take(order: Deposit, account: kind) -> None:
        """Do nothing."""

    assert "because owner has no default and is not the key" in problem_of(take, entity=kind)


async def test_two_classes_of_one_name_are_refused() -> None:
    """Their entities would be taken for each other's; two handlers of one class are fine."""

    @entity("Account")
    @dataclass
    class Other:
        """Another class with that name."""

        account_id: str

    async def withdraw(order: dict[str, Any], account: Account) -> None:
        """Do nothing."""

    async def other(order: dict[str, Any], account: Other) -> None:
        """Do nothing."""

    made = endpoint()
    made.handler(entity=Account, key="account_id")(deposit)
    made.handler(entity=Account, key="account_id", type="withdraw")(withdraw)
    host_of(made).handlers(STILL)
    made.handler(entity=Other, key="account_id", type="other")(other)
    (problem,) = problems(made)
    assert "two entity classes are named 'Account'" in problem


async def test_a_store_without_entities_is_told_at_start() -> None:
    """By what it offers."""
    assert "this one stores none" in problem_of(deposit, Offer())


@pytest.mark.parametrize("kind", [AsyncSession, Session])
async def test_a_session_is_there_on_sql_stores_only(kind: Any) -> None:
    """On a store of documents there is the entity instead."""

    async def take(order: Deposit, account: Account, session: kind) -> None:
        """Do nothing."""

    told = problem_of(take)
    assert f"session: {kind.__name__} is available on SQL stores only; work on an entity: @handler(entity=" in told
    assert "SQL stores only; here ask for Notebook; work on" in problem_of(take, MEMORY)


async def test_a_name_that_is_too_long_is_refused() -> None:
    """There must be room for keys."""

    @entity("x" * 200)
    @dataclass
    class Long:
        """An entity with a long name."""

        account_id: str

    async def take(order: Deposit, long: Long) -> None:
        """Do nothing."""

    assert "is too long; the limit is 127 bytes" in problem_of(take, entity=Long)


async def test_entities_go_together_with_what_else_handlers_ask_for() -> None:
    """A SQL store has sessions beside its entities."""

    async def take(order: Deposit, session: AsyncSession, account: Account, context: Context) -> None:
        """Do nothing."""

    made = endpoint(store="sqlite:///never-opened.db")
    made.handler(entity=Account, key="account_id")(take)
    host_of(made).handlers(STILL)
