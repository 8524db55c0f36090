"""Run both functions on Lambda as `examples/hosts/lambda_runtime.py` plays it: `python -m examples.hosts.aws_lambda`.

SQS is the emulator ministack, which is started for the run, or what listens at the URL in ONCEONLY_SQS.
"""

import os
import sys
from contextlib import nullcontext

from examples.hosts import harness, sqs

PACKAGE = "examples.hosts.aws_lambda"


def command(program: str) -> list[str]:
    """Return the command that runs a function."""
    return [sys.executable, "-m", "examples.hosts.lambda_runtime", f"{PACKAGE}.{program}"]


HOST = harness.Host(
    "aws_lambda",
    sqs.SqsWire,
    control=command("control"),
    exactly_once=command("exactly_once"),
    endpoint=f"{PACKAGE}.exactly_once:shop",
    kills_workers=True,
)

if __name__ == "__main__":
    named = os.environ.get("ONCEONLY_SQS", "")
    with nullcontext(named) if named else sqs.emulator() as url:
        harness.main(HOST, harness.Places.local("ONCEONLY_SQS", url))
