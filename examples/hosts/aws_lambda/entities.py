"""Orders in a function, exactly once: each is paid into an account, which is an entity in DynamoDB. Nothing else runs."""

from msgspec import Struct, field

from examples.hosts.program import BROKER, PLACED, STORE, account_of, report
from examples.hosts.sqs import KEY, REGION, SECRET
from onceonly import Context, Endpoint, IdentityField, Queue, WorkerSettings
from onceonly.integrations.aws_lambda import sqs_handler

shop = Endpoint(
    "shop",
    store=STORE,
    transport=f"sqs://{KEY}:{SECRET}@{REGION}?endpoint={BROKER}",
    identity=IdentityField("order_id"),
    timeout=2.0,
    worker=WorkerSettings(grace=1.0),
    events={"OrderPlaced": Queue(PLACED)},
)


class PlaceOrder(Struct):
    """A command of a client. With `fails` its first attempt fails."""

    order_id: str
    fails: bool = False

    @property
    def account(self) -> str:
        """The account that it is paid into."""
        return account_of(self.order_id)


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str


class Account(Struct):
    """An account, and the orders that it was paid."""

    name: str = ""
    balance: int = 0
    orders: list[str] = field(default_factory=list)


@shop.handler(entity=Account, key="account")
async def place_order(order: PlaceOrder, account: Account, context: Context) -> None:
    """Pay one into the account and announce it."""
    account.balance += 1
    account.orders.append(order.order_id)
    context.publish(OrderPlaced(order_id=order.order_id))
    report(order.order_id)
    if order.fails and not context.attempts:
        raise ValueError("not today")


handler = sqs_handler(shop)
