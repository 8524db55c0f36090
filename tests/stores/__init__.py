"""Stores on documents."""
