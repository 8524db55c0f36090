"""Tests of onceonly: folders mirror its packages, and topics that cross them have folders of their own."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The root of the repository."""
