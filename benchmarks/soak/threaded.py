"""A host with threads: `python -m benchmarks.soak.threaded`.

Each thread serves requests in synchronous sessions of one engine, as the threads of a web server do, and is replaced after a
number of them. An event loop in a thread of its own runs the endpoint. Every tenth request is dispatched by its own thread.
"""

import asyncio
import itertools
import random
import signal
import threading
import time
from collections import deque

from sqlalchemy.exc import OperationalError

from benchmarks.soak.shop import engine, log_to_errors, place_in_session, plan, report, shop
from onceonly import ConflictError, RetryableError

COPIES_OF = 5
"""Each fifth order is requested twice, at about the same time."""
OWN_DISPATCH_OF = 10
MOST_WAIT_SECONDS = 0.5


class Requests:
    """Gives threads the orders that clients request."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._again: deque[str] = deque()
        self._lock = threading.Lock()

    def next(self) -> str:
        """Return an order: a new one, or one that another thread has just been given."""
        with self._lock:
            if self._again:
                return self._again.popleft()
            number = next(self._numbers)
            order_id = f"thread-{number:07}"
            if not number % COPIES_OF:
                self._again.append(order_id)
            return order_id


class Server:
    """A fixed number of threads, each of which ends after a number of requests."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self._requests = Requests()
        self._random = random.Random(plan.seed)  # noqa: S311 - a pause is no secret
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Replace threads that have ended, until the stop. Raises what a thread has raised."""
        while not self.stop.wait(0.1) and self.failure is None:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            while len(self._threads) < plan.threads:
                self._threads.append(thread := threading.Thread(target=self._serve))
                thread.start()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _serve(self) -> None:
        try:
            for number in range(1, plan.recycle_after // 4 + self._random.randrange(20)):
                if self.stop.wait(self._random.uniform(0, 2 * plan.threads / plan.requests_rate)):
                    return
                self._answer(self._requests.next(), dispatches=not number % OWN_DISPATCH_OF)
            report("ended thread 0 0")
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self.failure = error

    def _answer(self, order_id: str, *, dispatches: bool) -> None:
        report(f"order {order_id}")
        while True:
            try:
                entry = place_in_session(order_id)
                if not dispatches or entry.is_dispatched or asyncio.run(entry.dispatch()):
                    return
            except (ConflictError, RetryableError, OperationalError):
                pass
            if self.stop.wait(self._random.uniform(0, MOST_WAIT_SECONDS)):
                time.sleep(MOST_WAIT_SECONDS)  # a client would come again after the restart: here there is none


def run_loop(ready: threading.Event, stop: threading.Event, failures: list[BaseException]) -> None:
    """Run the endpoint until the stop."""

    async def main() -> None:
        async with shop.running() as background:
            ready.set()
            while not stop.is_set():
                if background.failure:
                    raise RuntimeError(f"the endpoint has ended: {background.failure}")
                await asyncio.sleep(0.2)

    try:
        asyncio.run(main())
    except BaseException as error:  # noqa: BLE001 - raised by the main thread
        failures.append(error)
    finally:
        ready.set()


def main() -> None:
    """Serve until SIGTERM, then let the endpoint finish what was requested. Raises what failed."""
    server, ready, stop = Server(), threading.Event(), threading.Event()
    failures: list[BaseException] = []
    signal.signal(signal.SIGTERM, lambda *_: server.stop.set())
    loop = threading.Thread(target=run_loop, args=(ready, stop, failures))
    loop.start()
    ready.wait()
    report("ready")
    try:
        server.run()
        report("served")
        if not failures:
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            stop.wait()
    finally:
        stop.set()
        loop.join()
        engine.dispose()
    for failure in failures:
        raise failure


if __name__ == "__main__":
    log_to_errors()
    main()
