"""Run both applications on the local host: `python -m examples.hosts.azure_functions`. It needs PostgreSQL and RabbitMQ."""

import asyncio

from rich.console import Console

from examples.hosts import rabbitmq
from examples.hosts.functions_run import run
from examples.hosts.harness import Counts, Host, Places, table_of

HOST = Host.of("examples.hosts.azure_functions", rabbitmq.RabbitMQWire)

if __name__ == "__main__":
    places = Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL)

    async def both() -> list[Counts]:
        return [await run(places, is_control=is_control) for is_control in (True, False)]

    Console().print(table_of(HOST, asyncio.run(both())))
