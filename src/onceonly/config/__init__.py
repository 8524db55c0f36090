"""Settings and URLs, checked when they are constructed."""
