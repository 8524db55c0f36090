"""`hosted()` in a process that was forked: one of before the fork is refused, and one of after it works."""

import subprocess
import sys
from pathlib import Path

from tests import ROOT

PROGRAM = '''
import asyncio
import os
import sys

from tests.endpoint.hosted_harness import TWICE, order, sql_shop


async def handle(hosted):
    return await hosted.handle([order("a")])


async def reopen(shop):
    async with shop.hosted() as hosted:
        return await handle(hosted)


def in_child(work):
    """Run in a forked process, and print its error or outcome."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    try:
        found = asyncio.run(work)
        print("settled" if found[0].is_settled else "again", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)


async def main(shop):
    async with shop.hosted() as hosted:
        in_child(handle(hosted))
        in_child(reopen(shop))
        outcomes = await handle(hosted)
        print("settled" if outcomes[0].is_settled else "again", flush=True)


shop = sql_shop(sys.argv[1], sys.argv[2], retry=TWICE)
asyncio.run(main(shop))
in_child(reopen(shop))
'''


def test_hosted_is_opened_after_a_fork(tmp_path: Path) -> None:
    """The parent goes on, and a child that is forked outside of the block opens its own."""
    places = [f"sqlite:///{tmp_path}/{name}.db" for name in ("store", "queue")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *places], cwd=ROOT, capture_output=True, text=True, check=False)
    before, reopened, parent, after = done.stdout.splitlines() or [done.stderr]
    assert before.startswith("SetupError hosted() of endpoint 'shop' was opened before this process was forked")
    assert reopened.startswith("SetupError endpoint 'shop' was hosted when this process was forked")
    assert (parent, after) == ("settled", "settled")
