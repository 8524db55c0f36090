"""What a host holds at one moment: in the kernel, in PostgreSQL and in RabbitMQ."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.sql.options import DEFAULT_PREFIX
from onceonly.sql.store.tables import tables

__all__ = ["Broker", "ProcessUse", "broker_of_run", "in_database", "use_of"]

MIB = 1024.0
_CONNECTIONS = text(
    "SELECT application_name, count(*) AS count FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() GROUP BY application_name"
)


class ProcessUse(NamedTuple):
    """What one process holds. Memory is in MiB: resident, and with what is shared counted in parts."""

    descriptors: int
    resident: float
    proportional: float
    threads: int


def use_of(pid: int) -> ProcessUse | None:
    """Read it from the kernel. None if the process has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        descriptors = len(os.listdir(folder / "fd"))  # noqa: PTH208 - only their number is wanted
        status = _fields((folder / "status").read_text())
        shared = _fields((folder / "smaps_rollup").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    if "VmRSS" not in status:  # it has ended, and is waited for
        return None
    return ProcessUse(descriptors, int(status["VmRSS"]) / MIB, int(shared["Pss"]) / MIB, int(status["Threads"]))


def _fields(lines: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in lines.splitlines())
    return {name: value.split()[0] for name, _, value in pairs if value.split()}


async def in_database(engine: AsyncEngine) -> dict[str, float]:
    """Count connections to the database by application, without this program's own, and rows of the library's tables."""
    stored = tables(DEFAULT_PREFIX)
    counted = {
        "rows of keys": (stored.keys,),
        "rows of records": (stored.records,),
        "rows of starts": (stored.starts,),
        "rows of dead letters": (stored.dead_letters,),
        "rows of processes": (stored.processes,),
        "rows of claims": (stored.claims, *stored.buckets),
    }
    async with engine.connect() as connection:
        rows = {
            name: sum([(await connection.execute(select(func.count()).select_from(table))).scalar_one() for table in several])
            for name, several in counted.items()
        }
        by_name = {row[0]: row[1] for row in await connection.execute(_CONNECTIONS)}
    return {
        **{name: float(count) for name, count in rows.items()},
        "connections of onceonly": float(by_name.get("onceonly", 0)),
        "connections of the application": float(by_name.get("soak", 0)),
    }


class Broker(NamedTuple):
    """RabbitMQ of a run. Its connections and channels can be counted if the run has a virtual host of its own."""

    url: str
    vhost: str = ""

    async def numbers(self, own: int) -> dict[str, float]:
        """Count connections and channels, without the `own` connections of this program, which have one channel each."""
        if not self.vhost:
            return {}
        listed = await _rabbitmqctl("list_connections", "--no-table-headers", "vhost", "channels")
        found = [int(channels) for vhost, channels in map(str.split, listed.splitlines()) if vhost == self.vhost]
        return {"connections of RabbitMQ": len(found) - own, "channels of RabbitMQ": sum(found) - own}


@asynccontextmanager
async def broker_of_run(url: str, name: str) -> AsyncIterator[Broker]:
    """Make a virtual host for a run, and delete it at the end. Without rights on `rabbitmqctl` it is the one of the URL."""
    if shutil.which("rabbitmqctl") is None:
        yield Broker(url)
        return
    try:
        await _rabbitmqctl("add_vhost", name)
    except RuntimeError:
        yield Broker(url)
        return
    try:
        await _rabbitmqctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        yield Broker(f"{url.rstrip('/')}/{quote(name, safe='')}", name)
    finally:
        with suppress(RuntimeError):
            await _rabbitmqctl("delete_vhost", name)


async def _rabbitmqctl(*words: str) -> str:
    """Run it. Raises RuntimeError with its output."""
    process = await asyncio.create_subprocess_exec(
        "rabbitmqctl", "--quiet", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"rabbitmqctl {words[0]} failed: {output.decode(errors='replace')}")
    return output.decode()
