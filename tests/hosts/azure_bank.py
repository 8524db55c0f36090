"""A function app on Cosmos DB, for `test_azure_functions`: deposits of a Storage queue and of an event hub change an entity."""

import os

import azure.functions as func
from msgspec import Struct

from onceonly import Endpoint, IdentityField
from onceonly.integrations.azure_functions import handled_by


class Account(Struct):
    """An account, and how much was paid in."""

    id: str = ""
    amount: int = 0


class Deposit(Struct):
    """A message. The last one of a test has no amount."""

    order_id: str
    account_id: str
    amount: int


bank = Endpoint("bank", store=os.environ["BANK_STORE"], identity=IdentityField("order_id"), timeout=2.0)
app = func.FunctionApp()


@bank.handler(entity=Account, key="account_id")
async def pay_in(deposit: Deposit, account: Account) -> None:
    """Change the entity, and print the sum."""
    account.amount += deposit.amount
    os.write(1, f"sum {account.amount}\n".encode())


@app.queue_trigger(arg_name="message", queue_name="deposits", connection="STORAGE")
@handled_by(bank)
def from_queue(message: func.QueueMessage) -> None:
    """Its message is handled by `pay_in`."""


@app.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:01")
@app.event_hub_message_trigger(arg_name="events", event_hub_name="deposits", connection="EVENT_HUB", cardinality="many")
@handled_by(bank)
async def from_hub(events: list[func.EventHubEvent]) -> None:
    """Its events are handled by `pay_in`."""
