"""The terminal of these tests: what it runs can say more than a pipe holds."""

import sys

from tests.cli.terminal import Running, Terminal

PROGRAM = """
print("ready", flush=True)
print("x" * 1_000_000, "the end")
"""


def test_a_command_goes_on_although_nobody_reads_what_it_says(onceonly: Terminal) -> None:
    """A worker would stop in the middle of a message, when it has logged 64 KiB."""
    with onceonly.start("-c", PROGRAM, program=(sys.executable,)) as process:
        run = Running(process)
        assert run.until("ready") == "ready\n"
        assert process.wait(timeout=60) == 0
        assert run.until("the end").startswith("xxx")
        assert run.end() == ""
