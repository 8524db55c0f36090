"""Run both applications on a local broker: `python -m examples.hosts.confluent_loop`."""

from examples.hosts import harness, kafka

HOST = harness.Host.of("examples.hosts.confluent_loop", kafka.KafkaWire)

if __name__ == "__main__":
    with kafka.local_broker() as url:
        harness.main(HOST, harness.Places.local("ONCEONLY_KAFKA", url))
