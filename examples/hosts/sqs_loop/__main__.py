"""Run both applications: `python -m examples.hosts.sqs_loop`.

SQS is the emulator ministack, which is started for the run, or what listens at the URL in ONCEONLY_SQS.
"""

import os
from contextlib import nullcontext

from examples.hosts import harness, sqs

HOST = harness.Host.of("examples.hosts.sqs_loop", sqs.SqsWire)

if __name__ == "__main__":
    named = os.environ.get("ONCEONLY_SQS", "")
    with nullcontext(named) if named else sqs.emulator() as url:
        harness.main(HOST, harness.Places.local("ONCEONLY_SQS", url))
