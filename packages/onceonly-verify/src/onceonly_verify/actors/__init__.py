"""What works on an endpoint's store beside its workers: relays, clients, executors and maintenance."""
