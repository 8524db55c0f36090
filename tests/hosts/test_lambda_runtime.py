"""The rules of the host that plays AWS Lambda."""

import os
import signal
import time
from typing import Any

import pytest

from examples.hosts import lambda_runtime
from examples.hosts.lambda_runtime import Sandbox, failures

ARN = "arn:aws:sqs:eu-central-1:000000000000:orders"
IDS = {"a", "b"}


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (None, set()),
        ({}, set()),
        ({"batchItemFailures": []}, set()),
        ({"batchItemFailures": None}, set()),
        ({"batchItemFailures": [{"itemIdentifier": "b"}]}, {"b"}),
        ({"batchItemFailures": [{"itemIdentifier": "c"}]}, IDS),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, IDS),
        ({"batchItemFailures": [{"itemIdentifier": None}]}, IDS),
        ({"batchItemFailures": [{"id": "b"}]}, IDS),
        ({"batchItemFailures": 1}, IDS),
        ({"other": []}, IDS),
        ("it raised", IDS),
    ],
)
def test_an_answer_is_read_as_lambda_reads_it(answer: object, failed: set[str]) -> None:
    """What cannot be read fails the whole batch."""
    assert failures(answer, IDS) == failed


def message(id_: str) -> dict[str, Any]:
    """Return a message as a client of SQS receives it."""
    return {"MessageId": id_, "ReceiptHandle": id_, "Body": id_, "Attributes": {"ApproximateReceiveCount": "1"}}


def act(event: Any, context: Any) -> Any:
    """Do what the body of the first message says."""
    assert context.get_remaining_time_in_millis() > 0
    body = event["Records"][0]["body"]
    if body == "raise":
        raise ValueError(body)
    if body == "die":
        os._exit(1)
    if body == "hang":
        signal.pause()
    return {"batchItemFailures": [{"itemIdentifier": each["messageId"]} for each in event["Records"] if each["body"] == "fail"]}


def state(sandbox: Sandbox) -> str:
    """Return the state of its process, T if it is stopped."""
    with open(f"/proc/{sandbox.pid}/stat") as file:  # noqa: PTH123 - no file on a disk
        return file.read().rpartition(")")[2].split()[0]


def test_a_sandbox_is_frozen_between_invocations() -> None:
    """And answers which messages are deleted."""
    sandbox = Sandbox(act)
    try:
        for _ in range(2):
            sandbox.invoke([message("a"), message("fail")], ARN)
            done = sandbox.answer()
            assert done is not None
            assert [each["MessageId"] for each in done] == ["a"]
            assert state(sandbox) == "T"
        sandbox.invoke([message("raise")], ARN)
        assert sandbox.answer() == []
    finally:
        sandbox.end()


def test_a_sandbox_that_dies_or_takes_too_long_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is deleted. One that died while it was frozen is noticed at the next event."""
    for body in ("die", "hang", "frozen"):
        sandbox = Sandbox(act)
        if body == "hang":
            monkeypatch.setattr(lambda_runtime, "TIMEOUT_SECONDS", 0.0)
        if body == "frozen":
            monkeypatch.undo()
            os.kill(sandbox.pid, signal.SIGKILL)
        sandbox.invoke([message(body)], ARN)
        if body == "hang":
            time.sleep(0.001)
        assert sandbox.answer() is None
        sandbox.end()
