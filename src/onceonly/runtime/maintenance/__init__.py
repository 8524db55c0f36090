"""Periodic tasks: clean-up, time buckets, counts."""
