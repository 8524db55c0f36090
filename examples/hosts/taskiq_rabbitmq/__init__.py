"""taskiq on RabbitMQ, with taskiq-aio-pika."""
