"""One process that serves requests, as a worker of gunicorn does: `python -m benchmarks.django_views.program REQUESTS THREADS`.

Each thread calls the WSGI application again and again. After a warm-up it prints `warm`, waits for a line, and then prints the
seconds until all requests were answered, and until all events were on the queue.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pika

WARM_UP = 0.1
"""The part of the requests that is served before the measurement begins."""
GLANCE_SECONDS = 0.005
PATIENCE_SECONDS = 120.0
CREATED = "201 Created"


def serve(application: Any, environs: list[dict[str, Any]]) -> None:
    """Serve requests one after another. Raises RuntimeError for another answer than a new order."""
    for environ in environs:
        statuses: list[str] = []
        response = application(environ, lambda status, _headers, found=statuses: found.append(status))
        for _part in response:
            pass
        response.close()
        if statuses != [CREATED]:
            raise RuntimeError(f"a request was answered with {statuses}")


def main() -> None:
    """Serve, and print."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.django_views.settings")
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415 - it needs the settings
    from django.test import RequestFactory  # noqa: PLC0415 - the same

    from benchmarks.django_views.settings import BROKER, OUT  # noqa: PLC0415 - the same

    requests, threads = map(int, sys.argv[1:])
    application, factory = get_wsgi_application(), RequestFactory()

    def environ(number: int) -> dict[str, Any]:
        body = json.dumps({"order_id": f"order-{number}"})
        headers = {"Idempotency-Key": f'"order-{number}"'}
        return dict(factory.post("/orders", body, content_type="application/json", headers=headers).environ)

    channel = pika.BlockingConnection(pika.URLParameters(BROKER)).channel()

    def wait(number: int) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while channel.queue_declare(OUT, passive=True).method.message_count < number:
            if time.monotonic() > until:
                raise TimeoutError(f"not all of {number} events came")
            time.sleep(GLANCE_SECONDS)

    environs = [environ(number) for number in range(requests)]
    warm = int(requests * WARM_UP)
    with ThreadPoolExecutor(threads) as pool:

        def work(portion: list[dict[str, Any]]) -> None:
            done = [pool.submit(serve, application, portion[number::threads]) for number in range(threads)]
            for each in done:
                each.result()

        work(environs[:warm])
        wait(warm)
        print("warm", flush=True)
        sys.stdin.readline()
        begin, began_with = time.monotonic(), time.process_time()
        work(environs[warm:])
        answered = time.monotonic() - begin
    wait(requests)
    sent = time.monotonic() - begin
    print(answered, sent, time.process_time() - began_with, flush=True)


if __name__ == "__main__":
    main()
