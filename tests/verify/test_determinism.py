"""Code that looks at chance, a clock or its process's memory cannot be checked, and is refused with the call that differs."""

import pytest

from onceonly_verify import CHECKS, run_check
from onceonly_verify.programs import Patch, patched
from onceonly_verify.trie import NotDeterministic

ONE = next(check for check in CHECKS if check.name == "one message")
IMPORTS = "from collections.abc import Mapping, Sequence\n"
EFFECTS = "    sends = [effect for record"
LEFT = "    left = [record for record in records if"
BEGIN = "    unit = await ports.store.begin("


def outbox(*changes: tuple[str, str]) -> list[Patch]:
    """Change the algorithm's page."""
    return [Patch("algorithms.outbox", old, new) for old, new in changes]


CHANCE = outbox(
    (IMPORTS, IMPORTS + "import random\nfrom msgspec.structs import replace\n"),
    (EFFECTS, "    sends = [replace(effect, message=replace(effect.message, id=str(random.random()))) for record"),
)
CLOCK = outbox(
    (IMPORTS, IMPORTS + "import time\nfrom msgspec.structs import replace\n"),
    (EFFECTS, "    sends = [replace(effect, due=time.perf_counter_ns()) for record"),
)
COUNTER = outbox((IMPORTS, IMPORTS + "from itertools import count\nCALLS = count()\n"), (LEFT, LEFT + " next(CALLS) % 3 and"))
CACHE = outbox(
    (IMPORTS, IMPORTS + "SEEN = set()\n"),
    (BEGIN, "    if SEEN & set(messages):\n        return Processed()\n    SEEN.update(messages)\n" + BEGIN),
)
RAISES = outbox(
    (IMPORTS, IMPORTS + "CALLS = []\n"),
    (BEGIN, "    CALLS.append(1)\n    if len(CALLS) > 1:\n        raise ValueError('once only')\n" + BEGIN),
)


@pytest.mark.parametrize(
    ("patches", "words"),
    [
        pytest.param(CHANCE, ("Message(id=",), id="chance"),
        pytest.param(CLOCK, ("due=",), id="clock"),
        pytest.param(COUNTER, ("forget a", "ack delivery 1.1"), id="counter"),
        pytest.param(CACHE, ("begin a", "ended"), id="cache"),
        pytest.param(RAISES, ("begin a", "raised ValueError: once only"), id="raises"),
    ],
)
def test_code_that_looks_at_anything_but_its_arguments_is_refused(patches: list[Patch], words: tuple[str, ...]) -> None:
    """The message names the check, the call of the first run, and that of the second."""
    with pytest.raises(NotDeterministic) as refused:
        run_check(ONE, programs=patched(patches))
    text = str(refused.value)
    assert text.startswith("one message: this program looks at something that is not an argument")
    assert all(word in text for word in words), text
    assert len(text) < 600
