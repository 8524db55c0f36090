"""One seam for logs, health, metrics and crash injection."""
