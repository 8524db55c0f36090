"""Redis Streams without a database: what is read is added, with the driver that onceonly uses."""

from redis.asyncio import Redis

from benchmarks.job import JobControl, WorkerJob
from benchmarks.rows.onceonly import BATCH, OUT, SHOP
from onceonly.adapters.redis.address import GROUP, Keys
from onceonly.adapters.redis.entries import DATA


async def echo(job: WorkerJob, turn: JobControl) -> None:
    """Read batches, add each batch in one pipeline, then acknowledge and delete it in another one."""
    keys = Keys(job.prefix)
    source, target = keys.queue(SHOP).stream, keys.queue(OUT).stream
    client = Redis.from_url(job.broker)

    async def loop() -> None:
        while not turn.stop.is_set():  # the driver may swallow a cancellation
            found = await client.xreadgroup(GROUP, b"echo", {source: b">"}, count=BATCH, block=1000)
            entries = found[0][1] if found else []
            async with client.pipeline(transaction=False) as adding:
                for _, fields in entries:
                    adding.xadd(target, {DATA: fields[DATA.encode()]})
                await adding.execute()
            ids = [number for number, _ in entries]
            if ids:
                async with client.pipeline(transaction=False) as settling:
                    settling.xack(source, GROUP, *ids)
                    settling.xdel(source, *ids)
                    await settling.execute()

    await turn.begin()
    await turn.until_over(loop())
    await client.aclose()
