"""The conformance suites, bound to every adapter and to broken ones."""
