"""The runtime: workers, relays, maintenance, processes and observers."""
