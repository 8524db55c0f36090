"""The groups of dead letters with the same failure.

A group is message type, kind of failure, exception class, and place in the code. The place is the innermost frame of the
application in the traceback: file name and function, without line numbers and directories, which change with every release.
Without a traceback it is the first line of the reason, with quoted text, digits and hexadecimal numbers replaced. Texts in a
message can influence its group, and nothing else.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import hash_of
from onceonly.model.message import Failure

RULE = 1
"""The version of the rule. Each version gives other keys."""
LONGEST_PLACE = 200
_COMPARED = 150
"""Characters of a reason that earlier failures surely keep: transports shorten them."""

_HEADER = re.compile(r"^(?:  \+ Exception Group )?Traceback \(most recent call last\):$", re.MULTILINE)
_FRAME = re.compile(r'^(?:  \| )?  File "(?P<file>.*)", line \d+(?:, in (?P<function>.*))?$')
_EXCEPTION = re.compile(r"^(?:  \| )?(?P<name>[^\W\d][\w.<>]*)(?::|$)")
_SUB_EXCEPTIONS = "  +-"
_RAISED = re.compile(r"^([^\W\d][\w.]*)(?:: |$)")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?:[^/]+/)?")
_STANDARD_LIBRARY = re.compile(r"/lib\d*/python\d|/python[\d.]*/lib/|^<", re.IGNORECASE)
_OWN = re.compile(r"/(?:site-packages|dist-packages|src)/onceonly/")
_QUOTED = re.compile(r"""(?<!\w)'[^']*(?:'|$)|"[^"]*(?:"|$)|`[^`]*(?:`|$)""")
_HEXADECIMAL = re.compile(r"(?<!\w)(?:0x[0-9a-f]+|(?=[0-9a-f-]*\d)[0-9a-f][0-9a-f-]{6,}[0-9a-f])(?!\w)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


class FailureGroup(NamedTuple):
    """What the failures of a group have in common. `exception` is empty where no exception was raised."""

    type: str
    kind: str
    exception: str
    place: str

    @property
    def key(self) -> bytes:
        """16 bytes of a hash of all this."""
        return hash_of(b"failure", str(RULE).encode(), *(part.encode(errors="surrogatepass") for part in self))

    def __str__(self) -> str:
        return f"{self.exception}, {self.place}" if self.exception else self.place


def failure_group(letter: DeadLetter) -> FailureGroup:
    failure = _last_failure(letter)
    kind = failure.kind.value if failure else "refused" if letter.finish_only else ""
    type_ = letter.message.type if letter.message else ""
    raised = _read_traceback(failure.traceback) if failure and failure.traceback else None
    if raised is not None:
        return FailureGroup(type_, kind, *raised)
    named = _RAISED.match(letter.reason) if kind == "exception" else None
    return FailureGroup(type_, kind, named[1] if named else "", _without_values(letter.reason))


def _last_failure(letter: DeadLetter) -> Failure | None:
    """Return the failure that the letter was stored for. An earlier failure is not the cause of a later refusal."""
    last = letter.history[-1] if letter.history else None
    return last if last is not None and last.reason[:_COMPARED] == letter.reason[:_COMPARED] else None


def _read_traceback(text: str) -> tuple[str, str] | None:
    """Return exception class and place of the exception that was raised last, or None."""
    headers = [match.end() for match in _HEADER.finditer(text)]
    frames: list[tuple[str, str]] = []
    exception = ""
    for line in _lines(text[headers[-1] :] if headers else text):
        if frame := _FRAME.match(line):
            frames.append((frame["file"].replace("\\", "/"), frame["function"] or ""))
        elif frames and (name := _EXCEPTION.match(line)):
            exception = name["name"]
            break
    if not frames:
        return None
    file, function = _innermost(frames)
    return exception, f"{file.rpartition('/')[2]} {function}()"[:LONGEST_PLACE]


def _lines(text: str) -> Iterator[str]:
    """Return the lines of one traceback, without the exceptions of a group."""
    for line in text.split("\n"):
        if line.startswith(_SUB_EXCEPTIONS):
            return
        yield line


def _innermost(frames: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the last frame of the application.

    The first frame is the handler's. If it is in an installed package, that package is the application.
    """
    root = _INSTALLED.match(frames[0][0])
    application = root[0] if root and not _is_library(frames[0][0]) else ""
    for file, function in reversed(frames):
        if application and file.startswith(application):
            return file, function
        if not _is_library(file) and not _INSTALLED.match(file):
            return file, function
    return frames[-1]


def _is_library(file: str) -> bool:
    """Return whether a file belongs to Python or to this library, which never contain the cause."""
    return bool(_OWN.search(file)) or (not _INSTALLED.match(file) and bool(_STANDARD_LIBRARY.search(file)))


def _without_values(reason: str) -> str:
    """Return the first line of a reason, with what differs from message to message replaced by `…`."""
    line = (reason.strip().splitlines() or [""])[0][:LONGEST_PLACE]
    for pattern in (_QUOTED, _HEXADECIMAL, _DIGITS):
        line = pattern.sub("…", line)
    return line
