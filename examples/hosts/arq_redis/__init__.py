"""arq on Redis."""
