"""Sends 1,000 bodies of five shapes, or of one pydantic model, and nothing else: what it costs to write and check a body.

Run it under `valgrind --tool=cachegrind --cache-sim=no` for 1 and for 3 rounds: the difference, divided by 2,000, is the number
of instructions of one `Context.send`.

    python -m benchmarks.bodies ROUNDS [plain | pydantic | checked]
"""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from time import perf_counter
from uuid import NAMESPACE_DNS, UUID, uuid5

import msgspec
import pydantic

from onceonly.endpoint.context import Context, decision_of
from onceonly.endpoint.message_builder import MessageBuilder
from onceonly.endpoint.received_message import ReceivedMessage

NOW = datetime(2026, 11, 28, 12, 30, 15, 250000, tzinfo=UTC)
BODIES = 1000


@dataclass
class Note:
    """Two fields."""

    order_id: str
    count: int


@dataclass
class Line:
    """A part of an order."""

    sku: str
    quantity: int
    price: Decimal


@dataclass
class Order:
    """A list of objects, a UUID, an instant, a decimal."""

    order_id: UUID
    at: datetime
    lines: list[Line]
    note: str | None = None
    total: float = 0.0


class Ping(msgspec.Struct):
    """A struct with two fields."""

    name: str
    number: int


class Payment(msgspec.Struct):
    """A list of texts, and a decimal."""

    payment_id: str
    amount: Decimal
    currency: str
    is_paid: bool
    tags: list[str]


class Flight(msgspec.Struct):
    """An instant and a dict."""

    number: str
    origin: str
    destination: str
    departure: datetime
    seats: dict[str, int]
    gate: str | None = None


class ModelLine(pydantic.BaseModel):
    """A part of an order."""

    sku: str
    quantity: int
    price: Decimal


class ModelOrder(pydantic.BaseModel):
    """The order as a pydantic model that only declares fields."""

    order_id: UUID
    at: datetime
    lines: list[ModelLine]
    note: str | None = None
    total: float = 0.0


class CheckedOrder(ModelOrder):
    """With a constraint, so that each body is read back."""

    total: float = pydantic.Field(default=0.0, ge=0)


def plain(number: int) -> tuple[object, ...]:
    """Return one body of each shape."""
    return (
        Note(f"order-{number}", number),
        Order(uuid5(NAMESPACE_DNS, str(number)), NOW, [Line(f"sku-{i}", i, Decimal("9.90")) for i in range(3)], None, 29.5),
        Ping(f"ping-{number}", number),
        Payment(f"pay-{number}", Decimal("12.50"), "EUR", is_paid=True, tags=["a", "b"]),
        Flight(f"LH{number}", "FRA", "JFK", NOW, {"A": 1, "B": 2}),
    )


def models(kind: type[ModelOrder], number: int) -> ModelOrder:
    """Return an order as a model."""
    lines = [ModelLine(sku=f"sku-{i}", quantity=i, price=Decimal("9.90")) for i in range(3)]
    return kind(order_id=uuid5(NAMESPACE_DNS, str(number)), at=NOW, lines=lines, total=29.5)


def main(rounds: int, kind: str) -> None:
    """Send all bodies in each round, and print the time of one."""
    if kind == "plain":
        bodies: list[object] = [body for number in range(BODIES // 5) for body in plain(number)]
    else:
        bodies = [models(ModelOrder if kind == "pydantic" else CheckedOrder, number) for number in range(BODIES)]
    builder = MessageBuilder("shop", max_body=1 << 18)
    message = ReceivedMessage(id="1", source="web", type="t", body=b"{}", extensions=(("onceonlyhops", "1"),))
    began = perf_counter()
    for _ in range(rounds):
        context = Context(builder, message, now=1700000000000)
        for body in bodies:
            context.send(body, to="billing")
        decision_of(context)
    print(f"{(perf_counter() - began) / rounds / len(bodies) * 1e6:.1f} microseconds each")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "plain")  # noqa: PLR2004 - the second argument
