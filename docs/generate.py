"""Writes the pages of `docs/` that follow from the code. `make docs` runs it; a test compares the pages with what it gives."""

from pathlib import Path

from onceonly.runtime.observe.crash import CRASH_POINTS

HERE = Path(__file__).parent

CRASH_POINTS_HEAD = """\
# Crash points

Every place where a process can die on the way of a message, in the order a message meets them, by the name that the code, the
kit and the tests share. `testing.run(...)` and `deliver(..., crash_at=NAME)` kill your own handler there.
Written by `make docs`.

| the process dies | what happens then |
|---|---|
"""


def pages() -> dict[str, str]:
    """Give every generated page by its file name."""
    rows = (f"| `{name}` | {story} |\n" for name, story in CRASH_POINTS.items())
    return {"crash-points.md": CRASH_POINTS_HEAD + "".join(rows)}


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
