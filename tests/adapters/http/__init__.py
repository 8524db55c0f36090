"""The adapter for requests over HTTP."""
