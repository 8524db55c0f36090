"""The algorithms, over memory adapters."""
