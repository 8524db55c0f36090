"""The adapter for SQLite."""
