"""The adapter of S3."""
