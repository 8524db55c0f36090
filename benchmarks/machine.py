"""What the numbers were measured on: cores, load, memory, versions. No names of machines, no paths."""

import os
import platform
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version

from msgspec import Struct

from benchmarks.programs import graphile_version

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
    """Cores and memory, and the load average (1 minute) before and after: above the cores, others were at work.

    `interpreter` is `sys.version`, `built` tells which optimizations it was built with; earlier runs have neither.
    """

    cores: int
    memory_gib: float
    system: str
    load_before: float
    load_after: float = 0.0
    interpreter: str = ""
    built: str = ""


def look() -> Machine:
    """Describe this machine, before."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        cores=os.cpu_count() or 1,
        memory_gib=round(memory, 1),
        system=f"{platform.system()} {platform.machine()}",
        load_before=load(),
        interpreter=f"{platform.python_implementation()} {' '.join(sys.version.split())}",
        built=describe_build(sysconfig.get_config_var("CONFIG_ARGS")),
    )


def describe_build(arguments: str | None) -> str:
    """Describe which optimizations an interpreter was configured with, from `CONFIG_ARGS`.

    A distribution may turn them on in its own way, as Debian does when it runs `make profile-opt`. That is not visible here.
    """
    if arguments is None:
        return "build options unknown"
    given = {argument.strip("'") for argument in arguments.split()}
    pgo = "--enable-optimizations" in given
    lto = any(argument.startswith("--with-lto") and argument != "--with-lto=no" for argument in given)
    return f"configured {_with(given=pgo, option='--enable-optimizations (PGO)')}, {_with(given=lto, option='--with-lto')}"


def _with(*, given: bool, option: str) -> str:
    return f"{'with' if given else 'without'} {option}"


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def versions(**servers: str) -> dict[str, str]:
    """Return the versions of Python, of the packages that are installed, and of the servers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    graphile = graphile_version()
    return {**found, **({"graphile-worker": graphile} if graphile else {}), **servers}
