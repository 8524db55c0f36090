"""Run both applications on the local servers: `python -m examples.hosts.faststream_rabbitmq`."""

from examples.hosts import harness, rabbitmq

HOST = harness.Host.of("examples.hosts.faststream_rabbitmq", rabbitmq.RabbitMQWire)

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL))
