"""The adapter of Azure Queue Storage."""
