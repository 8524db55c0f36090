"""Transports: RabbitMQ and the queue in a database."""
