"""Deliberately broken adapters: each breaks one promise of a port in the way real ones do, and the suites must notice.

All of them wrap a subject that keeps its promises, and pass on every call but the one they spoil.
"""
