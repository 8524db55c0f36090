"""Start a program of a host again and again: `python -m examples.hosts.launch MODULE`.

It imports the module once. For each line that it reads it forks a process that calls the module's `main()`, prints the id of
this process, and `ended` when it has ended. So a start after a kill takes no time.
"""

import os
import sys
import traceback
from importlib import import_module

LATER = (
    "asyncpg",
    "onceonly.adapters.postgresql.asyncpg_scope",
    "onceonly.adapters.postgresql.maintenance",
    "onceonly.adapters.postgresql.watch",
    "onceonly.assembly.sql",
    "onceonly.endpoint.host",
    "onceonly.endpoint.transactions",
    "onceonly.runtime.observe.logs",
    "onceonly.runtime.relay.relay",
    "onceonly.runtime.worker.worker",
)
"""What an endpoint imports when it is opened."""

if __name__ == "__main__":
    program = import_module(sys.argv[1])
    if "onceonly" in sys.modules:
        for each in LATER:
            import_module(each)
    while sys.stdin.readline():
        pid = os.fork()
        if not pid:
            try:
                program.main()
            except BaseException:  # noqa: BLE001 - a process ends here, whatever ended it
                traceback.print_exc()
            os._exit(0)
        os.write(1, f"pid {pid}\n".encode())
        os.waitpid(pid, 0)
        os.write(1, b"ended\n")
