"""Ports in memory that only the checker and the library's tests use. Those of `memory:` URLs are `onceonly.adapters.memory`."""
