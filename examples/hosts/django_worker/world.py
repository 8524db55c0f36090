"""The world around the worker: queues as onceonly declares them, and the tables that `migrate` creates."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from examples.hosts.harness import ROOT, Host, Places, Tables, opened_database
from examples.hosts.rabbitmq import RabbitMQWire

PACKAGE = "examples.hosts.django_worker"


_DELAYS = ("due", "unheard", "subscribed", "unsubscribed")
_DECLARED = (
    *("onceonly:event:PlaceOrder", "onceonly:census", "onceonly:unsubscribed:orders"),
    *(f"onceonly:delay:{name}" for name in _DELAYS),
)
"""Queues and exchanges that the endpoint has declared."""


class WorkerWire(RabbitMQWire):
    """The queue of orders is that of the endpoint."""

    arguments: ClassVar[dict[str, Any]] = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000}

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix)
        self._prefix = prefix

    async def clean(self) -> None:
        """Remove what was declared. What is not there counts as deleted."""
        for name in _DECLARED:
            await self._channel.queue_delete(f"{self._prefix}{name}")
            await self._channel.exchange_delete(f"{self._prefix}{name}")
        await super().clean()


class ProjectTables(Tables):
    """The table of orders, and those of onceonly."""

    async def prepare(self, host: Host, environment: Mapping[str, str]) -> None:
        """Run `migrate`, as a deployment does."""
        command = (sys.executable, "-m", f"{PACKAGE}.manage", "migrate", "--verbosity=0")
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={**os.environ, **environment}, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {output.decode()}")


@asynccontextmanager
async def opened_project(places: Places, _prefix: str) -> AsyncIterator[ProjectTables]:
    """Make a database of this run."""
    async with opened_database(places.postgresql) as engine:
        yield ProjectTables(engine)
