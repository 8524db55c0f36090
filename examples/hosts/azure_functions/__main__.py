"""Run both applications on the local host: `python -m examples.hosts.azure_functions`. It needs PostgreSQL and RabbitMQ."""

import asyncio

from rich.console import Console

from examples.hosts import rabbitmq
from examples.hosts.functions_run import run, run_requests
from examples.hosts.harness import Counts, Host, Places, table_of

HOST = Host.of("examples.hosts.azure_functions", rabbitmq.RabbitMQWire)

if __name__ == "__main__":
    places = Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL)

    async def both(*, of_requests: bool) -> list[Counts]:
        play = run_requests if of_requests else run
        return [(await play(places, is_control=is_control)).counts for is_control in (True, False)]

    for of_requests in (False, True):
        Console().print(table_of(HOST, asyncio.run(both(of_requests=of_requests))))
