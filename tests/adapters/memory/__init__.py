"""The adapters in memory."""
