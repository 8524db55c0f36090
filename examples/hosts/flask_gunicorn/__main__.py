"""Run both applications on the local servers: `python -m examples.hosts.flask_gunicorn [sync|gthread|gevent]`."""

import sys

from examples.hosts import harness, rabbitmq
from examples.hosts.http_clients import HttpWire

PACKAGE = "examples.hosts.flask_gunicorn"
OPTIONS = {"sync": ["--preload"], "gthread": ["--preload", "--threads=4"], "gevent": []}
"""The options of each class of workers. gevent patches a worker before it imports the application, so it is not preloaded."""


def host_of(kind: str) -> harness.Host:
    """Return the host with workers of a class."""

    def command(program: str) -> list[str]:
        settings = f"--config=python:{PACKAGE}.settings"
        return [sys.executable, "-m", "gunicorn", settings, f"-k{kind}", *OPTIONS[kind], f"{PACKAGE}.{program}:app"]

    endpoint = f"{PACKAGE}.exactly_once:shop"
    return harness.Host(
        f"flask_gunicorn_{kind}",
        HttpWire,
        control=command("control"),
        exactly_once=command("exactly_once"),
        endpoint=endpoint,
        beside=[sys.executable, "-m", "onceonly", "relay", endpoint],
        victims=[harness.WORKERS],
    )


HOSTS = {kind: host_of(kind) for kind in OPTIONS}

if __name__ == "__main__":
    harness.main(HOSTS[(sys.argv[1:] or ["sync"])[0]], harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL))
