"""Effects: adapters for things that a handler makes elsewhere."""
