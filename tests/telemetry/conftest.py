"""Fixtures of this folder."""

from tests.telemetry.recording import recording

__all__ = ["recording"]
