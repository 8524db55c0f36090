"""The observer: logs, crash points and health."""
