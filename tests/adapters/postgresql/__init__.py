"""The adapter for PostgreSQL."""
