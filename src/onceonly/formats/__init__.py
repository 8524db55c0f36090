"""Bytes: bodies, CloudEvents, records, documents of entities, dead letters, remote requests."""
