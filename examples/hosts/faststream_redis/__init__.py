"""FastStream on Redis."""
