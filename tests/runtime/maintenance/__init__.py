"""The janitor and its tasks."""
