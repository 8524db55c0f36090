"""Traces of endpoints."""
