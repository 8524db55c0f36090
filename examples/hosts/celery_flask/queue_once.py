"""The class of tasks of celery-once: a lock in Redis from the time that a task is sent until it has ended."""

from celery_once import QueueOnce

from examples.hosts.celery_flask.lines import RESULTS


class Once(QueueOnce):  # type: ignore[misc] # it has no types
    """A task that is not sent again while it waits or runs. The lock of a process that died expires."""

    abstract = True
    once = {"graceful": True}  # noqa: RUF012 - as celery-once has it

    @property
    def once_config(self) -> dict[str, object]:
        """Where the locks are."""
        return {"backend": "celery_once.backends.Redis", "settings": {"url": f"{RESULTS}/0", "default_timeout": 60}}
