"""The adapter for RabbitMQ."""
