"""Messages about entities that can never be loaded or kept: dead letters at once, however many retries there would be."""

from dataclasses import dataclass

import pytest

from onceonly.algorithms.settlement import BatchReport
from onceonly.documents.store import ENTITY
from onceonly.ports.documents import Change, DocumentLimits
from tests.endpoint.entity_harness import Counter, Deposit
from tests.endpoint.harness import endpoint

NARROW = DocumentLimits(service="a narrow service", key=30, body=100_000)
SMALL = DocumentLimits(service="a small service", key=1024, body=4_096)


@dataclass
class Account:
    """An entity."""

    account_id: str
    balance: int = 0


def patient_bank() -> Counter:
    """Open a bank that tries again what failed, for hours."""
    made = endpoint(name="bank")

    @made.handler(entity=Account, key="account_id")
    def deposit(order: Deposit, account: Account) -> None:
        account.balance += order.amount

    return Counter(made)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<note/>", "document 'entity/Account/a' was not written by onceonly, or was changed by hand: "),
        (b'{"onceonly": 1, "records": 7}', "document 'entity/Account/a' was not written by onceonly, or was changed by hand: "),
    ],
)
async def test_a_document_of_somebody_else_is_not_tried_again(body: bytes, told: str) -> None:
    """Each of its messages is a dead letter after one attempt; other entities of the batch are handled."""
    counter = patient_bank()
    await counter.documents.save([Change(key=f"{ENTITY}Account/a", body=body)])
    report = await counter.deliver(Deposit("a"), Deposit("b"), Deposit("a"))
    assert (report.handled, report.dead, report.retried) == (1, 2, 0)
    assert [letter.attempts for letter in await counter.letters()] == [1, 1]
    assert all(letter.reason.startswith(told) for letter in await counter.letters())


async def test_a_key_that_the_service_cannot_hold_is_not_tried_again() -> None:
    """Shorter than what an endpoint takes, and longer than this service has room for."""
    counter = patient_bank()
    counter.documents.limits = NARROW
    assert await counter.deliver(Deposit("a" * 40)) == BatchReport(dead=1, failed=1)
    assert (
        await counter.reason()
        == f"entity key 'entity/Account/{'a' * 40}'... is too long; the limit of a narrow service is 30 bytes. Shorten it"
    )


async def test_a_document_that_would_be_too_large_is_not_tried_again() -> None:
    """Others of the batch are handled, also of the same entity; the letter says what to do."""
    made = endpoint(name="bank")

    @made.handler(entity=Account, key="account_id")
    def deposit(order: Deposit, account: Account) -> Account:
        return Account("x" * order.amount, account.balance + order.amount)

    counter = Counter(made)
    counter.documents.limits = SMALL
    report = await counter.deliver(Deposit("a"), Deposit("a", 5_000), Deposit("b"))
    assert (report.handled, report.dead, report.retried) == (2, 1, 0)
    (letter,) = await counter.letters()
    assert letter.attempts == 1
    assert letter.reason.startswith("document 'entity/Account/a' would be 5,")
    assert letter.reason.endswith("bytes are the state (make the entity smaller)")
