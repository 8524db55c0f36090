"""PgBouncer before the PostgreSQL server, in transaction mode: each transaction of a client gets any of a few sessions."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.engine import make_url

from tests.servers.available import Server, free_port
from tests.servers.debian import PGBOUNCER, program

PATIENCE = 20.0

_SETTINGS = """
[databases]
* = host={host} port={port} user={user} {password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
server_login_retry = 1
server_round_robin = 1
{more}
"""


@contextmanager
def pgbouncer(url: str, *, sessions: int = 8, more: str = "") -> Iterator[str]:
    """Run it before the server of a URL; gives the URL through it. A loud skip where it is not installed.

    It uses its sessions in turn, so that two transactions of one client hardly ever get the same one.
    """
    path, place, listen = program(PGBOUNCER), make_url(url), free_port()
    with TemporaryDirectory(prefix="onceonly-pgbouncer-", ignore_cleanup_errors=True) as name:
        settings = Path(name) / "pgbouncer.ini"
        password = f"password={place.password}" if place.password else ""
        settings.write_text(
            _SETTINGS.format(
                host=place.host,
                port=place.port or 5432,
                user=place.username,
                password=password,
                listen=listen,
                sessions=sessions,
                more=more,
            )
        )
        owner = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
        if owner is not None:
            shutil.chown(name, owner)
            settings.chmod(0o644)
        running = subprocess.Popen(
            [path, "--quiet", str(settings)], user=owner, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait(listen, running)
            yield place.set(host="127.0.0.1", port=listen).render_as_string(hide_password=False)
        finally:
            running.terminate()
            running.wait()


def _wait(port: int, running: "subprocess.Popen[bytes]") -> None:
    there, until = Server("PgBouncer", "", f"postgresql://127.0.0.1:{port}"), time.monotonic() + PATIENCE
    while not there.answers():
        assert running.poll() is None, "PgBouncer has ended at once"
        assert time.monotonic() < until, "PgBouncer does not answer"
        time.sleep(0.05)
