"""What is left, against what the clients wanted."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from sqlalchemy import select

from examples.shop.orders import Invoice, Order, Parcel, sessions
from examples.shop_demo.clients import Wish


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, counted; with keys all of it must be 0.

    `lost`: answered, and no such order. `duplicated`: orders beyond one for each wish. `different_answers`: wishes
    whose answers differ. `unbilled`, `billed_twice`, `unshipped`, `shipped_twice`: orders by their invoices and parcels.
    `ghosts`: invoices and parcels without an order.
    """

    lost: int
    duplicated: int
    different_answers: int
    unbilled: int
    billed_twice: int
    unshipped: int
    shipped_twice: int
    ghosts: int


class Books(msgspec.Struct, frozen=True):
    """The ids of all orders, and how many invoices and parcels each has."""

    orders: frozenset[int]
    invoices: Counter[int]
    parcels: Counter[int]

    @property
    def is_settled(self) -> bool:
        """Whether every order has gone all its way."""
        return self.orders <= self.invoices.keys() and self.orders <= self.parcels.keys()


async def read_books() -> Books:
    """Read the database."""
    async with sessions() as session:
        return Books(
            frozenset(await session.scalars(select(Order.id))),
            Counter(await session.scalars(select(Invoice.order_id))),
            Counter(await session.scalars(select(Parcel.order_id))),
        )


def audit(wishes: Sequence[Wish], books: Books) -> Findings:
    """Compare."""
    answered = {msgspec.json.decode(answer)["id"] for wish in wishes for answer in wish.answers}
    return Findings(
        lost=len(answered - books.orders),
        duplicated=len(books.orders) - len(wishes),
        different_answers=sum(len(set(wish.answers)) > 1 for wish in wishes),
        unbilled=len(books.orders - books.invoices.keys()),
        billed_twice=sum(count > 1 for count in books.invoices.values()),
        unshipped=len(books.orders - books.parcels.keys()),
        shipped_twice=sum(count > 1 for count in books.parcels.values()),
        ghosts=len((books.invoices.keys() | books.parcels.keys()) - books.orders),
    )
