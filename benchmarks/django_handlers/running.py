"""Fills a queue, runs workers on it, and measures until each message is handled and its event is in another queue."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT

import aio_pika

from benchmarks.celery_tasks.running import Place
from benchmarks.crew import ROOT
from onceonly.assembly import open_transport, temporary_transport
from onceonly.ports.transport import Topology

PACKAGE = "benchmarks.django_handlers"
KINDS = ("celery", "kept", "handler")
"""Tasks of Celery, which closes connections after each; the same with `CELERY_DB_REUSE_MAX`; and a handler."""


class DjangoPlace(Place):
    """A database and queues of one run."""

    program = f"{PACKAGE}.tasks"

    def environment(self, **own: str) -> dict[str, str]:
        """Return the environment of all programs."""
        return super().environment(DJANGO_SETTINGS_MODULE=f"{PACKAGE}.settings", **own)

    @property
    def is_handler(self) -> bool:
        return self.plan.kind == "handler"

    async def create(self) -> None:
        """Run `migrate`."""
        command = (sys.executable, "-m", "django", "migrate", "--verbosity=0")
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=self.environment(), stdout=PIPE, stderr=STDOUT)
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"migrate failed: {output.decode()}")

    async def fill(self) -> None:
        """Declare the queues, and send the messages."""
        if not self.is_handler:
            await super().fill()
            return
        await self.declare("out")
        url = f"{self.plan.rabbitmq}?prefix={self.prefix}"
        async with open_transport(url, "in") as transport:
            await transport.declare([Topology(endpoint="in", events=("PlaceOrder",))])
        messages = [aio_pika.Message(f'{{"order_id": "order-{number}"}}'.encode()) for number in range(self.plan.tasks)]
        for each in messages:
            each.content_type, each.delivery_mode = "application/json", aio_pika.DeliveryMode.PERSISTENT
            await self.channel.default_exchange.publish(each, f"{self.prefix}in")

    @property
    def command(self) -> tuple[str, ...]:
        """The command that runs a worker of this kind."""
        if not self.is_handler:
            return super().command
        manage = "from django.core.management import execute_from_command_line as run; import sys; run(sys.argv)"
        return (sys.executable, "-c", manage, "onceonly", "run", f"--processes={self.plan.children}")

    async def remove(self) -> None:
        """Remove the queues."""
        await super().remove()
        if self.is_handler:
            topology = Topology(endpoint="in", events=("PlaceOrder",))
            async with temporary_transport(f"{self.plan.rabbitmq}?prefix={self.prefix}", [topology]):
                pass
