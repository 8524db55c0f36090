"""How much memory this process has, and had, in bytes."""

import os
import sys
from pathlib import Path

MEGABYTE = 2**20
_STATM = Path("/proc/self/statm")


def resident() -> int:
    """Give what it has now; on macOS the most it ever had, and 0 on Windows, which does not tell."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak()


def peak() -> int:
    """Give the most that it ever had, and 0 on Windows, which does not tell."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
