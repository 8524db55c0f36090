"""How the main process of a worker settles the message of an exactly-once task whose process has died."""

from typing import Any

from celery.worker.request import Request


class ExactlyOnceRequest(Request):  # type: ignore[misc] # Celery has no types
    """Has a part of a chord delivered again if its process has died, also if its result was stored.

    Celery stores the result first. Then it counts the part, and sends the body of the chord. So a stored result does not mean
    that this was done, and the body would be lost. A part that is delivered again does it, under its known key.
    """

    def _success_was_stored(self) -> Any:
        return False if self.chord else super()._success_was_stored()
