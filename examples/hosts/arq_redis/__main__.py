"""Run both applications on the local servers: `python -m examples.hosts.arq_redis`."""

from examples.hosts import arq_queue, harness

HOST = harness.Host.of("examples.hosts.arq_redis", arq_queue.ArqWire)

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_REDIS", arq_queue.URL))
