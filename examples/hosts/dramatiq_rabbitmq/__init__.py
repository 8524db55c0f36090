"""Dramatiq on RabbitMQ."""
