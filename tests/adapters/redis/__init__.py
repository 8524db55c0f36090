"""The transport on Redis Streams, beyond what the suites of the ports require."""
