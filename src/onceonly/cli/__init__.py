"""The command line: words for people. Answers go to standard output, everything else to standard error."""

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line. Ends the process: 0 done, 1 the answer is no, 2 a person has to change something first.

    The commands are imported here and not before: every worker process imports its parent's script as well.
    """
    from onceonly.cli.app import run_commands

    run_commands(arguments)
