"""Servers and processes that fail while messages are handled."""
