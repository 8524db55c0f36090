"""Copies on the wire: how many events of an endpoint a receiver gets twice, after SIGKILL and without it."""
