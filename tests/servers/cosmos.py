"""The emulator of Cosmos DB that tests start: an account in memory, behind TLS with a certificate of its own."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.available import free_port
from tests.servers.emulators import COSMOS, Running, program_of, speaks_http
from tests.servers.proxy import Secured

KEY = "a2V5"
"""Any will do; it is Base64, because clients sign with it."""


_SERVE = """
const { createHttpsServer } = require(process.argv[1]);
const server = createHttpsServer({ keepAlive: true });
server.keepAliveTimeout = 0;
server.listen(Number(process.argv[2]), "127.0.0.1");
"""
"""Its own program closes a connection after each answer, and each would begin with a handshake."""


@contextmanager
def cosmos() -> Iterator[str]:
    """Run it; gives the URL of the account, without a database."""
    port, library = free_port(), Path(program_of(COSMOS)).resolve().parent / "index.js"
    with TemporaryDirectory(prefix="onceonly-emulator-", ignore_cleanup_errors=True) as name:
        emulated = Running(["node", "-e", _SERVE, str(library), str(port)], Path(name), {})
        try:
            emulated.start(lambda: speaks_http(port, secure=True))
            yield f"cosmos://:{KEY}@127.0.0.1:{port}"
        finally:
            emulated.stop()


def secured() -> Secured:
    """Return the TLS of a proxy before the emulator: the same certificate, and none that is asked for."""
    folder = Path(program_of(COSMOS)).resolve().parents[1]
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return Secured(serving, ssl._create_unverified_context())  # noqa: S323 - loopback
