"""A probe: the requests to /live and /ready that a service manager makes."""

import json
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

PATIENCE = 60.0


def ask(port: int, path: str) -> tuple[int, Any]:
    """Ask a probe's question."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def until(port: int, path: str, holds: Callable[[int, Any], bool]) -> tuple[int, Any]:
    """Ask until the answer is as it should be; a probe has no other way."""
    end = time.monotonic() + PATIENCE
    while not holds(*(answer := ask(port, path))):
        assert time.monotonic() < end, answer
        time.sleep(0.05)
    return answer
