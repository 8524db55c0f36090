"""The web integrations."""
