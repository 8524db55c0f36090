"""arq's queues as the world around an application sees them: jobs to place orders, and jobs to announce them."""

from collections.abc import Sequence

from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.constants import in_progress_key_prefix, job_key_prefix, result_key_prefix, retry_key_prefix

from examples.hosts.harness import WireEvent

URL = "redis://127.0.0.1:6379"


class ArqWire:
    """Two queues of one run. A client gives each job the id of its order. An event's id is that of its job.

    arq drops a job whose id is in a queue already. So copies are sent with the next portion:
    a client tries again later.
    """

    _redis: ArqRedis

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._orders, self._placed = f"{prefix}orders", f"{prefix}order-placed"
        self._events: list[WireEvent] = []
        self._fed: set[str] = set()
        self._later: list[str] = []

    async def prepare(self) -> None:
        """Connect: a queue is there with its first job."""
        self._redis = await create_pool(RedisSettings.from_dsn(self._url))

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Enqueue one job for each id."""
        copies, self._later = self._later, []
        for each in (*copies, *order_ids):
            if each in order_ids and each in self._fed:
                self._later.append(each)
            else:
                self._fed.add(each)
                await self._redis.enqueue_job("place_order", each, _job_id=self._job(each), _queue_name=self._orders)

    async def waiting(self) -> int:
        """Count the jobs that are not finished."""
        return int(await self._redis.zcard(self._orders))

    async def events(self) -> Sequence[WireEvent]:
        """Take the jobs that were enqueued since the last call."""
        for job in await self._redis.queued_jobs(queue_name=self._placed):
            self._events.append(WireEvent(job.job_id or "", job.args[0]))
            await self._redis.zrem(self._placed, job.job_id or "")
            await self._redis.delete(job_key_prefix + (job.job_id or ""))
        return self._events

    async def clean(self) -> None:
        """Delete all of it."""
        prefixes = (in_progress_key_prefix, job_key_prefix, result_key_prefix, retry_key_prefix)
        await self._redis.delete(self._orders, self._placed, f"{self._orders}:health-check")
        await self._redis.delete(*(prefix + self._job(each) for prefix in prefixes for each in self._fed))
        await self._redis.aclose(close_connection_pool=True)

    def _job(self, order_id: str) -> str:
        return f"{self._orders}-{order_id}"
