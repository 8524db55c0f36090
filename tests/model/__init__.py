"""The model: identities, retries, rings and health."""
