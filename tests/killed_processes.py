"""Programs that tests start, and kill at the end."""

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def python_process(module: str, *arguments: str, **options: Any) -> AsyncIterator[Process]:
    """Run a module in a process of its own, with these options of `create_subprocess_exec`; kill it at the end."""
    started = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, **options)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()
