"""The adapter of SQS."""
