"""Flask under gunicorn: orders come by HTTP, and events go to RabbitMQ."""
