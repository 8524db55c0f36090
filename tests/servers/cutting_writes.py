"""A TCP proxy before a document database that cuts one write: before the server gets it, or after it has applied it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tests.servers.proxy import Inspector, Proxy, Secured, listening


class WriteCutter(Proxy):
    """Passes everything on, but cuts the connection of the first write it is armed for; what comes later gets through.

    `is_write` knows a write by its bytes.
    """

    def __init__(self, place: tuple[str, int], is_write: Callable[[bytes], bool], secured: Secured | None = None) -> None:
        super().__init__(place, secured)
        self.armed = ""
        self.cuts = 0
        self._is_write = is_write

    def inspector(self) -> Inspector:
        """Look for the write, also where it comes in two pieces."""
        tail = b""

        def moment(data: bytes) -> str:
            nonlocal tail
            tail = tail[-200:] + data
            if not (self.armed and self._is_write(tail)):
                return ""
            armed, self.armed = self.armed, ""
            self.cuts += 1
            return armed

        return moment


def cutting_writes(
    place: tuple[str, int], is_write: Callable[[bytes], bool], secured: Secured | None = None
) -> AbstractAsyncContextManager[tuple[WriteCutter, int]]:
    """Put a cutter before a server; gives it, and the port it listens on."""
    return listening(WriteCutter(place, is_write, secured))
