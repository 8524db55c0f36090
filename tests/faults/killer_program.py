"""An endpoint some of whose messages end the process that handles them; the test runs it with `onceonly run`."""

import os
import signal
from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Endpoint, Retry, WorkerSettings

metadata = MetaData()
works = Table("works_done", metadata, Column("line", Integer, primary_key=True), Column("id", String(40)))
shop = Endpoint(
    "shop",
    store=os.environ["KILLERS_STORE"],
    transport=os.environ["KILLERS_TRANSPORT"],
    metadata=metadata,
    retry=Retry(immediate=0, delayed=0),
    worker=WorkerSettings(max_concurrency=2),  # other tests need connections to the server as well
)


@dataclass
class Work:
    """Something to do; `ends` says how the process ends, empty for not at all."""

    id: str
    ends: str = ""


async def work(work: Work, session: AsyncSession) -> None:
    """Write one row, whatever was written before."""
    await session.execute(insert(works).values(id=work.id))
    end(work)


async def work_batch(batch: list[Work], session: AsyncSession) -> None:
    """Write the rows of all."""
    await session.execute(insert(works), [{"id": each.id} for each in batch])
    for each in batch:
        end(each)


def end(work: Work) -> None:
    """End the process, if that is what the message does."""
    if work.ends == "exit":
        os._exit(7)
    if work.ends == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if "KILLERS_BATCH" in os.environ:
    shop.handler(batch=True)(work_batch)
else:
    shop.handler(work)
