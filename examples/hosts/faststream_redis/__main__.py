"""Run both applications on the local servers: `python -m examples.hosts.faststream_redis`."""

from examples.hosts import faststream_streams, harness

HOST = harness.Host.of("examples.hosts.faststream_redis", faststream_streams.FastStreamStreams)

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_REDIS", faststream_streams.URL))
