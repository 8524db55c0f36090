"""Workers are remembered as what they were told, and running them again must give the same calls."""

from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from onceonly.adapters.memory.world import PortOperation, Raises, WorldPart
from onceonly.model.errors import CommitFailed, RetryableError
from onceonly.model.message import Delivery
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.trie import NotDeterministic, Trie, UnexpectedOutcome

BATCH = (Delivery(receipt="r", queue="q", headers=(), body=b""),)
PLACE = WorldPart("somewhere", ())


def call(point: str) -> PortOperation:
    """Make a call that nobody carries out."""
    return PortOperation(point, PLACE, len, ())


def trie_of(program: Any) -> Trie:
    """Make a trie of one program, which is given its driver."""

    def start(batch: tuple[Delivery, ...]) -> tuple[CheckerDriver, Coroutine[Any, Any, Any]]:
        driver = CheckerDriver(batch[0].receipt)
        return driver, program(driver)

    return Trie(start)


async def polite(driver: CheckerDriver) -> None:
    """Ask, and go on by what is answered."""
    answer = await driver.perform(call("first"))
    driver.at_once(call("mark"))
    try:
        await driver.perform(call(f"after {answer}"))
    except CommitFailed:
        await driver.perform(call("sorry"))


def test_the_same_outcomes_lead_to_the_same_node() -> None:
    """A node is a small number, whatever way the search came."""
    trie = trie_of(polite)
    root = trie.root(BATCH)
    assert trie.root(BATCH) is root
    assert trie.child(root, "yes") is trie.child(root, "yes")
    assert trie.child(root, "yes").call == call("after yes")
    assert trie.child(root, "no").call == call("after no")
    trie.close()


def test_marks_are_kept_with_the_step_that_made_them() -> None:
    """What a program does at once belongs to the step before its next call."""
    trie = trie_of(polite)
    after = trie.child(trie.root(BATCH), "yes")
    assert after.marks == (call("mark"),)
    assert trie.root(BATCH).marks == ()
    assert trie.child(after, None).call is None
    trie.close()


def test_an_outcome_that_raises_is_raised_inside() -> None:
    """Failures are data to the search and exceptions to the program."""
    trie = trie_of(polite)
    after = trie.child(trie.root(BATCH), "yes")
    assert trie.child(after, Raises(CommitFailed, "no luck")).call == call("sorry")
    assert isinstance(trie.child(after, Raises(ValueError, "odd")).escaped, ValueError)
    trie.close()


def test_a_program_that_differs_when_it_runs_again_is_an_error_that_names_the_call() -> None:
    """A program that looks at anything but its arguments cannot be checked."""
    numbers = count(1)

    async def fickle(driver: CheckerDriver) -> None:
        await driver.perform(call(f"call {next(numbers)}"))
        await driver.perform(call("last"))

    trie = trie_of(fickle)
    root = trie.root(BATCH)
    trie.child(root, "the first way")
    with pytest.raises(NotDeterministic, match=r"call 1\n.*\n.*call 2"):
        trie.child(root, "another way")
    trie.close()


async def ending(driver: CheckerDriver) -> None:
    """Ask, then settle, in other words for other answers but with the same calls."""
    answer = await driver.perform(call("first"))
    with suppress(RetryableError):
        await driver.perform(call("ack" if answer else "release"))
    driver.at_once(call("mark"))


def test_nodes_with_the_same_future_share_a_number() -> None:
    """Nothing can tell them apart any more, and the way that led there is another."""
    trie = trie_of(ending)
    root = trie.root(BATCH)
    assert trie.child(root, "yes") is not trie.child(root, "certainly")
    assert trie.child(root, "yes").number == trie.child(root, "certainly").number != trie.child(root, "").number
    assert trie.nodes[trie.child(root, "certainly").number] is trie.child(root, "yes")
    assert trie.child(trie.child(root, "certainly"), Raises(CommitFailed, "by a fault")).marks == (call("mark"),)
    trie.close()


def test_an_answer_that_was_not_foreseen_is_an_error() -> None:
    """Equal futures were found by trying all answers there are; there must not be another."""
    trie = trie_of(ending)
    after = trie.child(trie.root(BATCH), "yes")
    with pytest.raises(UnexpectedOutcome, match="answered surprise"):
        trie.child(after, "surprise")
    trie.close()
