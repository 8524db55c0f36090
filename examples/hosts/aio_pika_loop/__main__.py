"""Run both applications on the local servers: `python -m examples.hosts.aio_pika_loop`."""

from examples.hosts import harness, rabbitmq

HOST = harness.Host.of("examples.hosts.aio_pika_loop", rabbitmq.RabbitMQWire)

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL))
