"""Exactly-once itself. Pure of I/O, time and chance: one `await` is one port call, so the very same code is model-checked.

docs/explanation/protocols.md has the rules that this code follows, docs/explanation/architecture.md the path of one message.
"""
