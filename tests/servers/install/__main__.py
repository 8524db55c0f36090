"""Installs and starts the servers of the tests where they do not answer: `make servers`. It needs no .venv.

A server that answers is left as it is, and so is one that a variable such as ONCEONLY_REDIS names elsewhere.
"""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

from tests.servers.install.daemons import LOCAL_SERVERS, LocalServer
from tests.servers.install.packages import LOG, install, installing, last_lines
from tests.servers.install.round_trips import Condition, Finding, examine
from tests.servers.install.starting import Write, start

COMPOSE = "tests/servers/install/compose.yaml"


class Host(NamedTuple):
    """What this machine lets a program do."""

    has_apt: bool
    is_root: bool

    @property
    def obstacles(self) -> list[str]:
        """Return why servers cannot be installed here."""
        found = {"there is no apt-get": self.has_apt, "this is not root": self.is_root}
        return [words for words, holds in found.items() if not holds]


def this_host() -> Host:
    """Return what this machine lets this process do."""
    return Host(shutil.which("apt-get") is not None, os.geteuid() == 0)


def provide(servers: Sequence[LocalServer], host: Host, environment: Mapping[str, str], write: Write) -> bool:
    """Start the servers that are missing, and write what was done. Returns whether all answer now."""
    here = []
    for server in servers:
        if environment.get(server.variable):
            write(f"{server.name}: {server.variable} names it, so none is started here")
        else:
            here.append(server)
    absent = find_absent(here, write)
    if absent is None:
        return False
    if not absent:
        write("Nothing was changed: no server is missing.")
        return True
    if host.obstacles:
        write(advice(absent, host))
        return False
    with installing() as log:
        # Another process that did the same has ended now, and may have started them.
        absent = [server for server in absent if examine(server.port, server.ask).condition is Condition.ABSENT]
        wanted = [server.package for server in absent if not server.is_installed()]
        if wanted and not add(wanted, log, write):
            return False
        with ThreadPoolExecutor(len(absent) or 1) as threads:
            is_started = all(threads.map(lambda server: start(server, write), absent))
    if absent and is_started:
        write("These servers are for tests, not for production: on this machine anyone is root on PostgreSQL and MariaDB.")
    return is_started


def add(wanted: Sequence[str], log: BinaryIO, write: Write) -> bool:
    """Install packages, and write the result. Returns whether they are installed."""
    write(f"installing {', '.join(wanted)}; the log is {LOG}")
    since = time.monotonic()
    if not install(wanted, log):
        write(f"!!! apt-get cannot install {' '.join(wanted)}; {last_lines(LOG)}")
        return False
    write(f"installed in {time.monotonic() - since:.1f} s")
    return True


def find_absent(servers: Sequence[LocalServer], write: Write) -> list[LocalServer] | None:
    """Return the servers whose ports are free, or None if a port is taken by something that tests cannot use."""
    absent, usable = [], True
    for server in servers:
        condition, words = examine(server.port, server.ask)
        if condition is Condition.READY:
            write(f"{server.name}: answers at 127.0.0.1:{server.port}")
        elif condition is Condition.ABSENT:
            absent.append(server)
        else:
            usable = False
            write(f"!!! {taken(server, Finding(condition, words))}")
    return absent if usable else None


def taken(server: LocalServer, finding: Finding) -> str:
    """Return the error about a port that is not free."""
    place = f"127.0.0.1:{server.port}"
    match finding.condition:
        case Condition.FOREIGN:
            problem = f"{place} is taken by something that does not answer as {server.name}: {finding.words}. Stop it"
        case Condition.STARTING:
            problem = f"{server.name} at {place} is starting: {finding.words}. Run `make servers` again"
        case _:
            problem = f"{server.name} at {place} refuses the login of the tests: {finding.words}. Stop it, or let the login in"
    return f"{problem}, or set {server.variable} to the URL of another one"


def advice(absent: Sequence[LocalServer], host: Host) -> str:
    """Return the ways to get the servers where they cannot be installed."""
    names = ", ".join(f"{server.name} (port {server.port})" for server in absent)
    services = " ".join(server.name.lower() for server in absent)
    packages = " ".join(server.package for server in absent)
    return (
        f"!!! Missing: {names}. They cannot be installed here, because {' and '.join(host.obstacles)}. Either\n"
        f"  * run `make servers` as root on Debian or Ubuntu, which installs the packages {packages}\n"
        f"  * or, with Docker: docker compose --file {COMPOSE} up --detach --wait {services}\n"
        f"  * or set {', '.join(server.variable for server in absent)} to URLs of servers elsewhere"
    )


def main() -> int:
    """Provide all servers; returns the exit status."""

    def write(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    return 0 if provide(LOCAL_SERVERS, this_host(), os.environ, write) else 1


if __name__ == "__main__":
    sys.exit(main())
