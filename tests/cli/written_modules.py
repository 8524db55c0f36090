"""Modules that tests write: each test imports its own, not one of the same name that an earlier test left behind."""

import importlib
import sys
from pathlib import Path


def forget_modules(folder: Path) -> None:
    """Have the modules in this folder imported anew next time."""
    inside = f"{folder}/"
    for name, module in sys.modules.copy().items():
        if _file_of(module).startswith(inside):
            del sys.modules[name]
    sys.path[:] = [place for place in sys.path if not f"{place}/".startswith(inside)]
    importlib.invalidate_caches()


def _file_of(module: object) -> str:
    file = vars(module).get("__file__") if hasattr(module, "__dict__") else None  # `getattr` has lazy modules import others
    return file if isinstance(file, str) else ""
