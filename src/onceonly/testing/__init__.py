"""Conformance suites that bind every adapter to the contracts of its port, and broken adapters that prove they bite.

An adapter's author subclasses a suite in a test module and overrides its one `open_...()` method; pytest collects the rules.
"""
