"""Azure storage for the tests: azurite, npm's emulator, on free ports and in a folder of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from tests.servers.available import free_port
from tests.servers.emulators import AZURITE, listens, running

ACCOUNT = "devstoreaccount1"
# Every emulator has this one; it is no secret.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite(Struct, frozen=True):
    """A running emulator: the addresses of its services."""

    blob: str
    table: str
    queue: str

    def url(self, service: str, path: str, *, through: str = "") -> str:
        """Return the URL of a place, as users write it; `through` is the address of a proxy before the service."""
        address = through or {"blob": self.blob, "table": self.table, "queue": self.queue}[service]
        key = quote(KEY, safe="")
        return f"azure-{service}://{ACCOUNT}:{key}@{ACCOUNT}/{path}?endpoint={quote(f'{address}/{ACCOUNT}', safe='')}"


@contextmanager
def azurite() -> Iterator[Azurite]:
    """Run the emulator; gives its addresses. It loses what was written last when it is killed: no test may do that."""
    blob, queue, table = free_port(), free_port(), free_port()

    def arguments(folder: Path) -> list[str]:
        services = {"blob": blob, "queue": queue, "table": table}
        places = [f"--{name}{what}={value}" for name, port in services.items() for what, value in _place(port)]
        return ["--silent", "--disableTelemetry", "--skipApiVersionCheck", f"--location={folder}", *places]

    with running(AZURITE, arguments, answers=lambda: all(map(listens, (blob, queue, table)))):
        yield Azurite(*(f"http://127.0.0.1:{port}" for port in (blob, table, queue)))


def _place(port: int) -> list[tuple[str, str]]:
    return [("Host", "127.0.0.1"), ("Port", str(port))]
