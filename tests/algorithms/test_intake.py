"""Sorting a batch: who shares a unit, and who goes back."""

from onceonly.adapters.memory.transport import MemoryReceipt
from onceonly.algorithms.intake import Intake, sort
from onceonly.formats.cloudevents import arrival, encode
from onceonly.model.message import Delivery, Message, Send
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.programs import shipped
from onceonly_verify.workload import SHOP, Workload
from onceonly_verify.workload_ports import ports_of


def delivery(number: int, id_: str, *, alone: bool = False, suspect: bool = False) -> Delivery:
    """Deliver a message, in a copy that may have to run alone or come from a dead process."""
    headers, body = encode(Send(message=Message(id=id_, source="web", type="t", body=b"x"), to=SHOP, alone=alone))
    return arrival(MemoryReceipt(number, 1), SHOP, headers, body, suspect=suspect)


def sorted_(*deliveries: Delivery) -> Intake:
    """Sort a batch of the shop."""
    return sort(deliveries, ports_of(Workload(arrivals=()), shipped(), CheckerDriver(None), endpoint=SHOP))


def ids(intake: Intake) -> list[str]:
    """Name those who run."""
    return [item.message.id for unit in intake.units for item in unit]


def test_a_batch_is_one_unit() -> None:
    """Copies of one message are one item, and nothing goes back."""
    intake = sorted_(delivery(1, "a"), delivery(2, "b"), delivery(3, "a"))
    assert ids(intake) == ["a", "b"]
    assert [len(item.deliveries) for item in intake.units[0]] == [2, 1]
    assert intake.back == ()


def test_what_must_run_alone_shares_no_unit() -> None:
    """All its copies do, and nothing goes back."""
    batch = (delivery(1, "a"), delivery(2, "b", alone=True), delivery(3, "c", alone=True), delivery(4, "a"), delivery(5, "b"))
    intake = sorted_(*batch)
    assert ids(intake) == ["a"]
    assert [item.message.id for item in intake.alone] == ["b", "c"]
    assert intake.alone[0].deliveries == (batch[1], batch[4])
    assert intake.back == ()


def test_a_suspect_does_not_run_yet() -> None:
    """Its copy runs alone."""
    batch = (delivery(1, "a", suspect=True), delivery(2, "b", alone=True), delivery(3, "c"))
    intake = sorted_(*batch)
    assert ids(intake) == ["c"]
    assert [item.message.id for item in intake.alone] == ["b"]
    assert [item.message.id for item in intake.suspects] == ["a"]


def test_a_copy_that_runs_alone_needs_no_other_copy() -> None:
    """Whether it came again or not: what was recorded when it ran tells whether a process died of it."""
    intake = sorted_(delivery(1, "a", suspect=True), delivery(2, "a", alone=True), delivery(3, "b", suspect=True, alone=True))
    assert ids(intake) == []
    assert [item.message.id for item in intake.alone] == ["a", "b"]
    assert intake.suspects == ()
