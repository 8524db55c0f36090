"""NATS JetStream without a database: what is pulled is published, with the driver that onceonly uses."""

import asyncio
from contextlib import suppress

import nats

from benchmarks.job import JobControl, WorkerJob
from benchmarks.rows.onceonly import BATCH, OUT, SHOP
from onceonly.adapters.nats.names import CONSUMER, NatsNames


async def echo(job: WorkerJob, turn: JobControl) -> None:
    """Pull batches, publish each batch side by side, then acknowledge it."""
    names = NatsNames(job.prefix)
    client = await nats.connect(job.broker)
    stream = client.jetstream()
    source = await stream.pull_subscribe_bind(durable=CONSUMER, stream=names.queue(SHOP))
    target = names.queue_subject(OUT)

    async def loop() -> None:
        while not turn.stop.is_set():  # the driver may swallow a cancellation
            with suppress(nats.errors.TimeoutError):
                messages = await source.fetch(BATCH, timeout=1)
                await asyncio.gather(*(stream.publish(target, message.data) for message in messages))
                for message in messages:
                    await message.ack()

    await turn.begin()
    await turn.until_over(loop())
    await client.close()
