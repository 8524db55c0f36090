"""The adapters, a folder for each system."""
