"""Crash points in tests of the kit."""

UNREACHED = frozenset(f"{side}-{call}" for side in ("before", "after") for call in ("release", "retry-copy", "dead-letter"))
"""What a handler that succeeds does not reach."""
