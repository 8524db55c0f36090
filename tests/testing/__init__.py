"""The test kit for users."""
