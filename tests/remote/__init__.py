"""Requests between services."""
