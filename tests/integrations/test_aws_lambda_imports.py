"""What a function in AWS Lambda imports of onceonly: a cold start takes as long as its modules."""

import subprocess
import sys
from pathlib import Path

from examples.hosts.aws_lambda.cold_start import END, PROGRAM

MOST_MODULES = 278
"""Each takes about half a millisecond of CPU. Before you raise it: can the new module be imported when it is needed?"""
NOT_FOR_A_FUNCTION = (
    "onceonly.adapters.memory",
    "onceonly.assembly.documents",
    "onceonly.assembly.gauges",
    "onceonly.cli",
    "onceonly.documents.dead_letters",
    "onceonly.documents.store",
    "onceonly.operations",
    "onceonly.runtime.metrics.catalog",
    "onceonly.sql.queue",
    "onceonly.testing",
)
"""Stores of other kinds, a queue in SQL, commands, and metrics."""


def test_a_function_imports_only_what_it_needs(tmp_path: Path) -> None:
    """After it has handled a message on SQLite and SQS."""
    command = [sys.executable, "-c", PROGRAM + END, str(tmp_path)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "onceonly.sql.store.store" in names
    assert "onceonly.adapters.aws.sqs.transport" in names
    assert [name for name in NOT_FOR_A_FUNCTION if name in names] == []
    assert len(names) <= MOST_MODULES
