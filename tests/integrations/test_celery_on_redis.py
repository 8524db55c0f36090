"""What kombu's transport for Redis promises about a message that a process takes: less than the guide's other brokers."""

import os
import subprocess
import sys
from uuid import uuid4

from kombu import Connection
from redis import Redis

from tests import ROOT

DIES = """
import os, sys
from kombu import Connection
from kombu.transport.redis import QoS
if sys.argv[3] == "before":
    QoS.append = lambda *_: os._exit(9)
with Connection(sys.argv[1]) as connection, connection.Consumer(
    [connection.SimpleQueue(sys.argv[2]).queue], callbacks=[lambda *_: os._exit(9)], accept=["json"]
):
    connection.drain_events(timeout=30)
"""


def left_after(place: str, when: str) -> int:
    """Send a message, let a process take it and die, and count what Redis still has of it."""
    url, queue = place.partition("?")[0], f"once-{uuid4().hex[:8]}"
    with Connection(url) as connection, Redis.from_url(url, decode_responses=True) as redis:
        before = {*redis.hkeys("unacked")}
        with connection.SimpleQueue(queue) as sender:
            sender.put({"order": 1})
        assert redis.llen(queue) == 1
        died = subprocess.run([sys.executable, "-c", DIES, url, queue, when], cwd=ROOT, env=os.environ, check=False)
        assert died.returncode == 9
        taken = {*redis.hkeys("unacked")} - before
        left = redis.llen(queue) + len(taken)
        if taken:
            redis.hdel("unacked", *taken)
            redis.zrem("unacked_index", *taken)
        redis.delete(queue, f"_kombu.binding.{queue}", f"_kombu.binding_permanent.{queue}")
    return int(left)


def test_a_process_that_dies_while_it_takes_a_message_loses_it(redis_url: str) -> None:
    """Kombu takes it from the queue by one command, and notes that it is not acknowledged by another one.

    The guide says so. If this fails, kombu does both in one, and the guide has to say that.
    """
    assert (left_after(redis_url, "before"), left_after(redis_url, "after")) == (0, 1)
