"""An endpoint some of whose messages end the process that handles them; the test runs it with `onceonly run`."""

import os
import signal
from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Endpoint, Retry

metadata = MetaData()
works = Table("works_done", metadata, Column("line", Integer, primary_key=True), Column("id", String(40)))
shop = Endpoint(
    "shop",
    store=os.environ["KILLERS_STORE"],
    transport=os.environ["KILLERS_TRANSPORT"],
    metadata=metadata,
    retry=Retry(immediate=0, delayed=0),
)


@dataclass
class Work:
    """Something to do; `ends` says how the process ends, empty for not at all."""

    id: str
    ends: str = ""


@shop.handler
async def work(work: Work, session: AsyncSession) -> None:
    """Write one row, whatever was written before."""
    await session.execute(insert(works).values(id=work.id))
    if work.ends == "exit":
        os._exit(7)
    if work.ends == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
