"""Run a command with a newer release of a server in its environment.

`python -m tests.servers.with_release POSTGRESQL_18 make test`: the first word is a name in `tests.servers.releases`. Without
the release, the command runs with the server of this machine, which is said loudly; with CI=true it does not run at all.
"""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from types import FrameType

import pytest

from tests.servers import releases
from tests.servers.releases import NewServer, started
from tests.servers.versions import version_of


def main(name: str, *command: str) -> int:
    """Run it; gives its exit code."""
    new: NewServer = getattr(releases, name)
    with ExitStack() as stack:
        variables = {}
        try:
            variables = stack.enter_context(started(new))
        except pytest.skip.Exception as reason:
            sys.stderr.write(f"!!! NOT TESTED: {reason}\n")
        except pytest.fail.Exception as reason:
            sys.stderr.write(f"{reason}\n")
            return 1
        else:
            found = asyncio.run(version_of(variables[new.server.variable]))
            sys.stderr.write(f"with {new.server.name} {found}\n")
        with subprocess.Popen(command, env={**os.environ, **variables}) as running:

            def pass_on(number: int, _frame: FrameType | None) -> None:
                running.send_signal(number)

            signal.signal(signal.SIGTERM, pass_on)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command as well
            return running.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
