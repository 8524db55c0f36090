"""How many inputs a fuzz test tries: 1,000, or what the environment variable ONCEONLY_FUZZ says.

ONCEONLY_FUZZ=100000 pytest -q tests/adapters -k fuzz
"""

import os


def inputs() -> int:
    """Return the number of inputs of each fuzz test."""
    return int(os.environ.get("ONCEONLY_FUZZ", "1000"))
