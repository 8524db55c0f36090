"""nats-py, in a loop of the application's own."""
