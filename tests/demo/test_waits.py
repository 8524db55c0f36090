"""Which message waited for longest, and why."""

from pathlib import Path

import pytest

from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly_conformance.clock import ManualClock
from onceonly_demo.waits import (
    ALONE,
    COPIED,
    IN_PROGRESS,
    NO_WAIT,
    LongestWait,
    MessageStep,
    StepKind,
    StepRecorder,
    longest_wait,
    read_steps,
)

RECEIVED, COPIED_STEP, RELEASED, DONE = StepKind.RECEIVED, StepKind.COPIED, StepKind.RELEASED, StepKind.DONE


def steps(*told: tuple[int, StepKind, int], why: str = "") -> list[MessageStep]:
    """Make the steps of one message: when, what, in which process."""
    return [MessageStep(at, "shop", "till", "1", kind, process, why) for at, kind, process in told]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], LongestWait(0.0, NO_WAIT)),
        (steps((0, RECEIVED, 1), (3000, RECEIVED, 2), (3100, DONE, 2)), LongestWait(3.0, "held by a process that died")),
        (steps((0, RECEIVED, 1), (3000, RECEIVED, 1)), LongestWait(3.0, "delivered again to the same process")),
        (steps((0, RECEIVED, 1), (200, DONE, 1), (9000, RECEIVED, 2), (9001, DONE, 2)), LongestWait(0.2, "in work")),
        (steps((0, RECEIVED, 1), (10, RELEASED, 1), (500, RECEIVED, 1)), LongestWait(0.49, "released")),
        (steps((0, RECEIVED, 1), (10, COPIED_STEP, 1), (70_010, RECEIVED, 1), why=IN_PROGRESS), LongestWait(70.0, IN_PROGRESS)),
    ],
)
def test_the_longest_wait_ends_when_the_message_is_done_for_the_first_time(
    found: list[MessageStep], expected: LongestWait
) -> None:
    """Copies that come later wait for nothing."""
    assert longest_wait(found) == expected


def test_a_message_that_comes_again_waits_behind_the_queue() -> None:
    """The cause says so: the lease is only a part of the wait."""
    others = [MessageStep(at, "shop", "till", f"o-{at}", RECEIVED, 2) for at in (100, 200, 9000)]
    elsewhere = [MessageStep(300, "billing", "till", "1", RECEIVED, 2)]
    found = [*steps((0, RECEIVED, 1), (3000, RECEIVED, 2)), *others, *elsewhere]
    assert longest_wait(found).cause == "held by a process that died, behind 2 other messages"


async def test_a_recorder_writes_down_each_step(tmp_path: Path) -> None:
    """With the reason why a message is sent again. Its original, which is acknowledged then, is not done."""
    clock = ManualClock()
    recorder = StepRecorder(tmp_path, clock)
    failed = Failure(kind=FailureKind.EXCEPTION, reason="ValueError: no")
    message = Message(id="1", source="till", type="Work", body=b"{}")
    delivery = Delivery(receipt="r", queue="shop", headers=(), body=b"{}")
    copies = (
        Send(message=message, to="shop", alone=True),
        Send(message=message, to="shop", held=1),
        Send(message=message, to="shop", alone=True, due=1),
        Send(message=message, to="shop", history=(failed,)),
        Send(message=message, to="shop", history=(failed,), due=1),
    )
    settle = {Point.RELEASE: RELEASED, Point.ACK: DONE}
    for send in copies:
        recorder.read("shop", delivery, message)
        for point, item in ((Point.RETRY_COPY, send), (Point.ACK, delivery)):
            async with recorder.around(PortCall(point, "shop", [item])):
                clock.advance(1)
    for point in settle:
        recorder.read("shop", delivery, message)
        async with recorder.around(PortCall(point, "shop", [delivery])):
            clock.advance(1)
    found = read_steps(tmp_path)
    reasons = [ALONE, COPIED, IN_PROGRESS, "sent again: ValueError: no", "put off: ValueError: no"]
    assert [step.why for step in found if step.kind is COPIED_STEP] == reasons
    assert [step.kind for step in found] == [RECEIVED, COPIED_STEP] * 5 + [RECEIVED, RELEASED, RECEIVED, DONE]


def test_a_line_that_a_kill_has_cut_off_is_left_out(tmp_path: Path) -> None:
    """The process may die while it writes."""
    recorder = StepRecorder(tmp_path, ManualClock())
    message = Message(id="1", source="till", type="Work", body=b"{}")
    recorder.read("shop", Delivery(receipt="r", queue="shop", headers=(), body=b"{}"), message)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"at": 1')
    assert len(read_steps(tmp_path)) == 1
