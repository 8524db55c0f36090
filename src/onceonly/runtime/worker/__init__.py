"""The worker: receives batches and processes them as units."""
