"""Run both workers on the local servers: `python -m examples.hosts.django_worker`."""

import sys

from examples.hosts import harness, rabbitmq
from examples.hosts.django_worker.world import PACKAGE, WorkerWire, opened_project

HOST = harness.Host(
    "django_worker",
    WorkerWire,
    control=[sys.executable, "-m", f"{PACKAGE}.control"],
    exactly_once=[sys.executable, "-m", f"{PACKAGE}.manage", "onceonly", "run"],
    victims=(harness.WORKERS, harness.APPLICATION),
    control_victims=(harness.APPLICATION,),
    books=opened_project,
)
"""Killed are the worker process of `onceonly run`, and its main process. The control has one process."""

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL), kills=20)
