"""Where a thread is: the place in the user's code, and the stack that led there."""

import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

STACK_LIMIT = 8000
"""Characters of a stack that are logged: its end."""


class Place(NamedTuple):
    """A place in the code, such as `shop.py:12 in place_order`, and the stack, innermost frame last."""

    text: str
    stack: str


def place_of(thread: int) -> Place:
    """Find where a thread is now, by its identifier: in the innermost frame that is neither Python's nor a library's.

    The innermost frame of all if no frame is in the program. Empty for a thread that has ended.
    """
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented by Python under this name
    if frame is None:
        return Place("", "")
    stack = "".join(traceback.format_stack(frame))[-STACK_LIMIT:]
    found = _of_user(frame) or frame
    code = found.f_code
    return Place(f"{code.co_filename}:{found.f_lineno} in {code.co_qualname}", stack)


def _of_user(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(("<", *_libraries())):
            return frame
        frame = frame.f_back
    return None


@cache
def _libraries() -> tuple[str, ...]:
    """List the folders of Python, of installed packages and of this package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    own = Path(__file__).parents[2]
    return tuple({f"{folder}/" for folder in (*(sysconfig.get_path(name) for name in names), str(own))})
