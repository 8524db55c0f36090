"""Code that looks at chance, a clock or its process's memory cannot be checked, and is refused with the call that differs."""

import pytest

from onceonly_verify import CHECKS, run_check
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import define, imports, insert_first, replace
from onceonly_verify.mutations.places import argument, condition, produced, source_of
from onceonly_verify.programs import changed
from onceonly_verify.trie import NotDeterministic

ONE = next(check for check in CHECKS if check.name == "one message")
EFFECT = produced(source_of(argument("transport.send", 0)))


def outbox(function: str, *operations: EditOperation) -> CodeChange:
    """Change the algorithm's page."""
    return change("algorithms.outbox", function, *operations)


CHANCE = (
    outbox("", imports("random")),
    outbox("dispatch", replace(EFFECT, "replace(old, message=replace(old.message, id=str(random.random())))")),
)
CLOCK = (outbox("", imports("time")), outbox("dispatch", replace(EFFECT, "replace(old, due=time.perf_counter_ns())")))
COUNTER = (
    outbox("", imports("itertools", "count"), define("CALLS = count()")),
    outbox("_forget_and_ack", replace(condition("store.keeps"), "next(CALLS) % 3 and old")),
)
CACHE = (
    outbox("", define("SEEN = set()")),
    outbox("process", insert_first("if SEEN & set(messages):\n    return UnitResult()\nSEEN.update(messages)")),
)
RAISES = (
    outbox("", define("CALLS = []")),
    outbox("process", insert_first("CALLS.append(1)\nif len(CALLS) > 1:\n    raise ValueError('once only')")),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(CHANCE, ("Message(id=",), id="chance"),
        pytest.param(CLOCK, ("due=",), id="clock"),
        pytest.param(COUNTER, ("forget a", "raised WrongReportError"), id="counter"),
        pytest.param(CACHE, ("begin a", "raised WrongReportError"), id="cache"),
        pytest.param(RAISES, ("begin a", "raised ValueError: once only"), id="raises"),
    ],
)
def test_code_that_looks_at_anything_but_its_arguments_is_refused(
    changes: tuple[CodeChange, ...], words: tuple[str, ...]
) -> None:
    """The message names the check, the call of the first run, and that of the second."""
    with pytest.raises(NotDeterministic) as refused:
        run_check(ONE, programs=changed(changes))
    text = str(refused.value)
    assert text.startswith("one message: this program looks at something that is not an argument")
    assert all(word in text for word in words), text
    assert len(text) < 600
