"""The harness of the examples."""

import asyncio
import sys
from pathlib import Path

from examples.hosts.harness import Application

PRINTS = """
import sys
from pathlib import Path

for number in range(20_000):
    print(f"line {number}")
print("last", flush=True)
Path(sys.argv[1]).touch()
"""


async def test_a_program_that_prints_much_is_not_held_up(tmp_path: Path) -> None:
    """A pipe takes 64 KiB, and the harness asks for lines only while it waits for some."""
    printed = tmp_path / "printed"
    application = Application([sys.executable, "-c", PRINTS, str(printed)], {})
    await application.start()
    try:
        while not printed.exists():  # noqa: ASYNC110 - nothing reports a file
            await asyncio.sleep(0.01)
        assert await application.reported(1, {"last"}) == 1
    finally:
        await application.close()


async def test_the_end_of_a_program_is_seen() -> None:
    """Also by those that ask later."""
    application = Application([sys.executable, "-c", "print('one', flush=True)"], {})
    await application.start()
    try:
        assert await application.reported(2, {"one"}) == 1
        assert await application.reported(1, {"one"}) == 0
    finally:
        await application.close()
