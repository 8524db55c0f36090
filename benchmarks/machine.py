"""What the numbers were measured on: cores, load, memory, versions. No names of machines, no paths."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from msgspec import Struct

PACKAGES = (
    "onceonly",
    "SQLAlchemy",
    "asyncpg",
    "psycopg",
    "aiormq",
    "aiosqlite",
    "uvloop",
    "faststream",
    "faststream-outbox",
    "dbos",
    "procrastinate",
    "huey",
)


class Machine(Struct, kw_only=True):
    """Cores and memory, and the load average (1 minute) before and after: above the cores, others were at work."""

    cores: int
    memory_gib: float
    system: str
    load_before: float
    load_after: float = 0.0


def look() -> Machine:
    """Describe this machine, before."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        cores=os.cpu_count() or 1,
        memory_gib=round(memory, 1),
        system=f"{platform.system()} {platform.machine()}",
        load_before=load(),
    )


def load() -> float:
    """Give the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def versions(**servers: str) -> dict[str, str]:
    """Give the versions of Python, of the packages that are installed, and of the servers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, **servers}
