"""aio-pika, in a loop of the application's own."""
