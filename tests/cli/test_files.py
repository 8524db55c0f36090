"""Lines of files and of standard input."""

import asyncio
import signal

from onceonly.cli.files import interruptible


async def test_lines_are_read_in_any_thread() -> None:
    """Only the main thread may change what Ctrl-C does."""
    before = signal.getsignal(signal.SIGINT)
    lines = [b"one\n", b"two\n"]
    assert await asyncio.to_thread(list, interruptible(lines)) == lines
    assert [*interruptible(lines)] == lines
    assert signal.getsignal(signal.SIGINT) is before
