"""Programs of Debian's packages that tests use: where one is missing and root may, it is installed, once for all processes."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.available import MISSING, Server, gone

# None of these is a server, but its absence is reported like a server's. What a variable names is not installed.
CHROMIUM = Server("Chromium", "ONCEONLY_CHROMIUM", "chromium")
FAKETIME = Server("faketime", "ONCEONLY_FAKETIME", "faketime")
PGBOUNCER = Server("PgBouncer", "ONCEONLY_PGBOUNCER", "pgbouncer")
PROMETHEUS = Server("Prometheus", "ONCEONLY_PROMETHEUS", "prometheus")
PROGRAMS = (CHROMIUM, FAKETIME, PGBOUNCER, PROMETHEUS)

_SYSTEM = "/usr/sbin:/sbin:/usr/local/sbin"

# Packages of services start them. `policy-rc.d` is how Debian is told not to; one that is there is left alone.
_INSTALL = """
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\\nexit 101\\n' >"$policy"
    chmod 755 "$policy"
fi
quickly="--quiet --option Acquire::Retries=0 --option Acquire::http::Timeout=20 --option DPkg::Lock::Timeout=120"
install() { apt-get $quickly install --yes --no-install-recommends "$1"; }
install "$1" || { apt-get $quickly update && install "$1"; }
"""


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
    with (Path(tempfile.gettempdir()) / "onceonly-debian.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # held until the last process that has the file has closed it
        if _find(wanted) is None:
            command = ["sh", "-c", _INSTALL, "sh", wanted.default]
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            installing = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            installing.wait()
    return _find(wanted)
