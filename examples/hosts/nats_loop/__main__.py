"""Run both applications on the local servers: `python -m examples.hosts.nats_loop`."""

from examples.hosts import harness, nats

HOST = harness.Host.of("examples.hosts.nats_loop", nats.NatsWire)

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_NATS", nats.URL))
