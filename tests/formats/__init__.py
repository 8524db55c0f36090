"""The stored and sent formats."""
