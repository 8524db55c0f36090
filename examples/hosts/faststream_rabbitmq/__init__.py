"""FastStream on RabbitMQ."""
