"""Programs of Debian's packages that tests use: where one is missing and root may, it is installed, once for all processes."""

import os
import shutil
from pathlib import Path

from tests.servers.available import MISSING, Server, gone
from tests.servers.install.packages import install, installing

# None of these is a server, but its absence is reported like a server's. What a variable names is not installed.
CHROMIUM = Server("Chromium", "ONCEONLY_CHROMIUM", "chromium")
FAKETIME = Server("faketime", "ONCEONLY_FAKETIME", "faketime")
PGBOUNCER = Server("PgBouncer", "ONCEONLY_PGBOUNCER", "pgbouncer")
PROMETHEUS = Server("Prometheus", "ONCEONLY_PROMETHEUS", "prometheus")
DEBOOTSTRAP = Server("debootstrap", "ONCEONLY_DEBOOTSTRAP", "debootstrap")
PROGRAMS = (CHROMIUM, DEBOOTSTRAP, FAKETIME, PGBOUNCER, PROMETHEUS)

_SYSTEM = "/usr/sbin:/sbin:/usr/local/sbin"


def program(wanted: Server) -> str:
    """Return the path of a program; a loud skip where it is neither there nor can be installed, and with CI=true a failure."""
    found = _find(wanted) or (_install(wanted) if _may_install(wanted) else None)
    if found is None:
        raise gone(wanted, f"{wanted.name} is not installed: install the package `{wanted.default}`, or set {wanted.variable}")
    return found


def faketime_library() -> str:
    """Return the path of the library that faketime preloads; skips or fails like `program`."""
    program(FAKETIME)
    found = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if found is None:
        raise gone(FAKETIME, "faketime's library is not where Debian has it")
    return str(found)


def promtool() -> str:
    """Return the path of the program that tests rules of Prometheus; skips or fails like `program`."""
    beside = Path(program(PROMETHEUS)).with_name("promtool")
    if not beside.exists():
        raise gone(PROMETHEUS, f"there is no promtool beside {beside.with_name('prometheus')}")
    return str(beside)


def _find(wanted: Server) -> str | None:
    return shutil.which(wanted.url) or shutil.which(wanted.url, path=_SYSTEM)


def _may_install(wanted: Server) -> bool:
    has_apt = shutil.which("apt-get") is not None
    return wanted not in MISSING and wanted.url == wanted.default and has_apt and os.geteuid() == 0


def _install(wanted: Server) -> str | None:
    """Install a package. The installation goes on, and keeps the others waiting, when this test runs into its time limit."""
    with installing() as log:
        if _find(wanted) is None:
            install([wanted.default], log)
    return _find(wanted)
