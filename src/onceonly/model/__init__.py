"""Immutable data: what the algorithms and the ports speak about. Imports nothing of the house."""
