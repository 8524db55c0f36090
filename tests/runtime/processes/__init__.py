"""Supervised processes."""
