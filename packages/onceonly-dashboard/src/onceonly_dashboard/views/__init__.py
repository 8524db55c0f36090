"""The pages: each view reads what its page shows."""
