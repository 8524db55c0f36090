"""One scenario on every library and by hand: consume a message, write a row, publish a message. `python -m benchmarks`."""
