"""What users touch: endpoints, contexts, handlers and transactions."""
