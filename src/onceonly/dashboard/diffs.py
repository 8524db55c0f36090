"""The difference of two texts, line by line."""

from difflib import SequenceMatcher

from msgspec import Struct

CONTEXT = 3
MOST_LINES = 2000


class DiffLine(Struct, frozen=True):
    """One line: `sign` is "+", "-", or empty for a line that is the same."""

    sign: str
    text: str


def diff(before: str, after: str) -> list[DiffLine]:
    """Return the changed lines with three lines around them. Beyond 2,000 lines each text is shown as a whole."""
    old, new = before.split("\n"), after.split("\n")
    if max(len(old), len(new)) > MOST_LINES:
        return [] if old == new else [*(DiffLine("-", line) for line in old), *(DiffLine("+", line) for line in new)]
    found: list[DiffLine] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                found += [DiffLine("", line) for line in old[start:end]]
            else:
                found += [DiffLine("-", line) for line in old[start:end]]
                found += [DiffLine("+", line) for line in new[new_start:new_end]]
    return found
