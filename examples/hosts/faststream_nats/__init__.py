"""FastStream on NATS."""
