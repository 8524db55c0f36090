"""Adapters chosen and composed from URLs and settings."""
