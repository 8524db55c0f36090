"""Installs Debian's packages, one installation at a time, without starting the services in them."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

LOG = Path(tempfile.gettempdir()) / "onceonly-debian.log"

# Packages of services start them. `policy-rc.d` is how Debian is told not to; one that is there is left alone.
# dpkg would wait for the disk after each file. It is enough to wait once, at the end.
_INSTALL = """
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\\nexit 101\\n' >"$policy"
    chmod 755 "$policy"
fi
quickly="--quiet --option Acquire::Retries=0 --option Acquire::http::Timeout=20 --option DPkg::Lock::Timeout=120"
quickly="$quickly --option DPkg::Options::=--force-unsafe-io"
install() { apt-get $quickly install --yes --no-install-recommends "$@"; }
install "$@" || { apt-get $quickly update && install "$@"; } || exit
sync
"""


@contextmanager
def installing() -> Iterator[BinaryIO]:
    """Wait until no other process installs, and keep others waiting; gives the log of installations."""
    with LOG.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # held until the last process that has the file has closed it
        yield log


def install(names: Sequence[str], log: BinaryIO) -> bool:
    """Install packages, and return whether that succeeded.

    The installation continues, and keeps the others waiting, when the process that started it is killed. The locale decides the
    encoding of a new PostgreSQL cluster.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    command = ["sh", "-c", _INSTALL, "sh", *names]
    running = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    return running.wait() == 0


def last_lines(log: Path, count: int = 20) -> str:
    """Return the end of a log, below its name."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    return "\n".join([f"the end of {log}:", *lines])
