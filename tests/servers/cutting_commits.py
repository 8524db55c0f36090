"""A TCP proxy that cuts a connection at its COMMIT, before the server gets it or after it has answered, or holds it up."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url

from tests.servers.proxy import Inspector, Proxy, listening

COMMITS = (b"COMMIT\0", b"COMMIT;\0", b"\x03COMMIT", b"; COMMIT")
"""How a COMMIT looks on its way to PostgreSQL (asyncpg itself ends it with ;), to MariaDB, and to both behind a statement."""
READING = b"READ ONLY"
"""What a transaction says at its begin whose COMMIT is of no interest."""


class Cutter(Proxy):
    """Passes everything on, until it is told to cut the next COMMIT `before` or `after` the server has done it.

    `decide` says it of each COMMIT anew; by itself it says what `cut` is. When it says `hold`, `holds` is set, and the COMMIT
    goes on once `may_go` is. Only transactions that said `about` are looked at, lest a relay's or a janitor's is cut.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port))
        self.cut = ""
        self.about = b""
        self.decide: Callable[[], str] = lambda: self.cut
        self.holds, self.may_go = asyncio.Event(), asyncio.Event()

    def inspector(self) -> Inspector:
        """Look for a COMMIT of a transaction that writes."""
        reads = said = False

        def moment(data: bytes) -> str:
            nonlocal reads, said
            is_commit = any(commit in data for commit in COMMITS)
            said = said or self.about in data
            decided = self.decide() if is_commit and said and not reads else ""
            reads = READING in data or (reads and not is_commit)
            said = said and not is_commit
            return decided

        return moment

    async def hold(self) -> None:
        """Tell that a COMMIT is held up, and wait."""
        self.holds.set()
        await self.may_go.wait()


@asynccontextmanager
async def cutting(url: str, kind: type[Cutter] = Cutter) -> AsyncIterator[tuple[Cutter, str]]:
    """Put a cutter before a database; gives it, and the URL through it."""
    place = urlsplit(url)
    async with listening(kind(place.hostname or "", place.port or 5432)) as (cutter, port):
        yield cutter, make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
