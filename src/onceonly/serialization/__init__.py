"""Bytes on the wire and in the store: CloudEvents headers, message bodies, records. No pickle, no imports by name."""
