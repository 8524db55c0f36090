"""Draws the diagrams of `docs/explanation/how-it-works.md`. `make docs` writes them, and a test compares them.

A diagram is a card with a light background, so it can be read in light and in dark pages. It loads no font and no file. The
crash points of the code are in `CRASHES` and `OTHER_CRASHES`, each once; a test checks that none is missing.
"""

from collections.abc import Sequence
from html import escape
from textwrap import wrap
from typing import Literal, NamedTuple

WIDTH = 760
INK, SOFT, LINE, CARD = "#1f2430", "#5b6478", "#c7cdd9", "#ffffff"
BLUE, GREEN, RED, AMBER = "#dfe7fb", "#dcf1e2", "#b3261e", "#fbeccb"
_STYLE = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif"
_ARROWS = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
    f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
)


class Step(NamedTuple):
    """An arrow from one column to another, or with the same number twice a step within a column."""

    start: int
    end: int
    text: str
    kind: Literal["call", "commit", "crash"] = "call"


class Crash(NamedTuple):
    """Crash points with the same effect: between which steps of `STEPS` they are, what is stored, and what happens next."""

    first: int
    last: int
    stored: str
    next: str
    points: tuple[str, ...]


class OtherCrash(NamedTuple):
    """Crash points outside of the main path: in which step and where, what is stored, and what happens next."""

    step: str
    where: str
    stored: str
    next: str
    points: tuple[str, ...]


STEPS = ("receive", "begin", "handle", "commit", "dispatch", "forget", "ack")
"""The main path. `begin` includes the claim."""

CRASHES = (
    Crash(0, 0, "nothing", "Another worker receives the message.", ("before-receive",)),
    Crash(
        1,
        3,
        "nothing: the open transaction is rolled back",
        "The message comes again. It is new, and is handled.",
        (
            "after-receive",
            "before-begin",
            "after-begin",
            "before-admits",
            "after-admits",
            "before-handle",
            "after-handle",
            "before-prepare",
            "after-prepare",
            "before-commit",
        ),
    ),
    Crash(
        4,
        4,
        "data, claim and record",
        "The message comes again. The record is pending: only its messages are sent.",
        ("after-commit", "before-activate", "after-activate", "before-dispatch"),
    ),
    Crash(
        5,
        5,
        "data, claim and record; the messages are sent",
        "The same messages are sent again, with the same ids. Receivers skip the copies.",
        ("after-dispatch", "before-retire", "after-retire", "before-forget"),
    ),
    Crash(
        6, 6, "data and claim", "The message comes again. It is done: it is only acknowledged.", ("after-forget", "before-ack")
    ),
    Crash(7, 7, "data and claim", "The message does not come again.", ("after-ack",)),
)

OTHER_CRASHES = (
    OtherCrash(
        "release",
        "before or after it",
        "nothing",
        "The lease ends, and the message comes again.",
        ("before-release", "after-release"),
    ),
    OtherCrash(
        "retry: send a copy",
        "before the copy is sent",
        "the original",
        "The failure is not counted yet. The message comes again.",
        ("before-retry-copy",),
    ),
    OtherCrash(
        "retry: ack the original",
        "before the original is acknowledged",
        "the copy and the original",
        "Both come. One claim: handled once.",
        ("after-retry-copy",),
    ),
    OtherCrash(
        "give up: store the letter",
        "before the letter is stored",
        "the original",
        "The message comes again, and is given up then.",
        ("before-dead-letter",),
    ),
    OtherCrash(
        "give up: ack the original",
        "before the original is acknowledged",
        "the dead letter and the original",
        "The message comes again. The dead letter is stored once.",
        ("after-dead-letter",),
    ),
)
"""The ways out of the main path: a release, a retry, a dead letter."""


def svg(title: str, description: str, height: int, *parts: str) -> str:
    """Return a card of this height."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" style="{_STYLE}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n{_ARROWS}\n"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="{CARD}" stroke="{LINE}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(  # noqa: PLR0913 - how a line of text looks
    x: float, y: float, words: str, *, size: int = 13, colour: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    """Return a line of text."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def paragraph(x: float, y: float, words: str, most: int) -> list[str]:
    """Return lines of at most this many characters."""
    return [text(x, y + 15 * number, line, size=12) for number, line in enumerate(wrap(words, most))]


def box(x: float, y: float, width: float, height: float, colour: str) -> str:  # noqa: PLR0917 - as in SVG
    """Return a filled box with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{colour}" stroke="{LINE}"/>'


def sequence(title: str, description: str, columns: Sequence[str], steps: Sequence[Step]) -> str:
    """Draw who calls whom, from the top to the bottom."""
    gap = WIDTH / len(columns)
    middles = [gap * (number + 0.5) for number in range(len(columns))]
    height = 76 + 40 * len(steps)
    parts = []
    for middle, name in zip(middles, columns, strict=True):
        parts += [box(middle - 70, 14, 140, 30, BLUE), text(middle, 34, name, anchor="middle", bold=True)]
        parts.append(f'<line x1="{middle:g}" y1="44" x2="{middle:g}" y2="{height - 14}" stroke="{LINE}"/>')
    for number, step in enumerate(steps):
        y = 84 + 40 * number
        start, end = middles[step.start], middles[step.end]
        if step.start == step.end:
            wide = max(120.0, 7.2 * len(step.text) + 20)
            colour = {"call": CARD, "commit": GREEN, "crash": AMBER}[step.kind]
            parts += [box(start - wide / 2, y - 17, wide, 26, colour), text(start, y, step.text, anchor="middle")]
            continue
        if step.kind == "commit":
            parts.append(box(min(start, end) + 8, y - 21, abs(end - start) - 16, 26, GREEN))
        inward = 3 if end > start else -3
        parts.append(text((start + end) / 2, y - 4, step.text, anchor="middle", bold=step.kind == "commit"))
        ends = f'x1="{start + inward:g}" x2="{end - inward:g}" y1="{y + 7}" y2="{y + 7}"'
        parts.append(f'<line {ends} stroke="{INK}" marker-end="url(#tip)"/>')
    return svg(title, description, height, *parts)


def crashes() -> str:
    """Draw where a process can die on the main path, and what happens then."""
    left, step_width = 16, 64
    parts = [text(left, 28, "A process dies ...", bold=True), text(482, 28, "... then", bold=True)]
    top, row = 44, 58
    for number, crash in enumerate(CRASHES):
        y = top + row * number
        for position, name in enumerate(STEPS):
            x = left + step_width * position
            done = position < crash.first
            parts.append(box(x, y, step_width - 6, 24, GREEN if done else CARD))
            parts.append(text(x + (step_width - 6) / 2, y + 16, name, size=11, anchor="middle", colour=INK if done else SOFT))
        begin, end = left + step_width * crash.first - 3, left + step_width * crash.last - 3
        parts.append(
            f'<rect x="{begin - 3:g}" y="{y - 5}" width="{end - begin + 6:g}" height="34" rx="3" fill="{RED}" fill-opacity="'
            f'{0.18 if end > begin else 1}" stroke="{RED}"/>'
        )
        parts.append(text(left, y + 42, f"Stored: {crash.stored}", size=11, colour=SOFT))
        parts += paragraph(482, y + 10, crash.next, 42)
    return svg(
        "Crash points of the main path",
        "For each place where a process can die: the steps that are done, what is stored, and what happens with the message.",
        top + row * len(CRASHES) + 4,
        *parts,
    )


def other_crashes() -> str:
    """Draw the same for the ways out of the main path."""
    top, row = 48, 48
    parts = [
        text(16, 28, "Step", bold=True),
        text(196, 28, "A process dies ...", bold=True),
        text(456, 28, "... then", bold=True),
    ]
    for number, crash in enumerate(OTHER_CRASHES):
        y = top + row * number
        parts += [box(16, y, 168, 34, AMBER), text(100, y + 21, crash.step, size=12, anchor="middle")]
        parts += [text(196, y + 14, crash.where, size=12), text(196, y + 30, f"Stored: {crash.stored}", size=11, colour=SOFT)]
        parts += paragraph(456, y + 14, crash.next, 44)
    return svg(
        "Crash points of releases, retries and dead letters",
        "For each step next to the main path: where a process can die, what is stored, and what happens with the message.",
        top + row * len(OTHER_CRASHES) + 2,
        *parts,
    )


def buckets() -> str:
    """Draw the time buckets, and which of them is emptied next."""
    kinds = [("kept", BLUE)] * 12 + [("filled now", GREEN), ("clocks", CARD), ("spare", CARD), ("emptied", AMBER)]
    width = (WIDTH - 32) / len(kinds)
    parts = [text(16, 28, "16 tables of claims, each for a twelfth of the retention", bold=True)]
    for number, (name, colour) in enumerate(kinds):
        x = 16 + width * number
        parts += [box(x, 58, width - 4, 46, colour), text(x + (width - 4) / 2, 86, f"{number:02}", anchor="middle")]
        if name != "kept":
            parts.append(text(x + (width - 4) / 2, 122 + 16 * (number % 2), name, size=11, anchor="middle", colour=SOFT))
    parts += [
        text(16 + 6 * width, 50, "the retention: copies of these messages are known", size=12, anchor="middle", colour=SOFT),
        text(
            16,
            168,
            "Time goes from left to right. Then the oldest table is emptied by TRUNCATE, gets the label of the next",
            size=12,
        ),
        text(16, 185, "time slice, and is filled again. No claim is deleted row by row, so no dead rows are left.", size=12),
    ]
    return svg(
        "Time buckets of claims", "Sixteen tables in turn: twelve are kept, one is filled, the oldest is emptied.", 202, *parts
    )


def diagrams() -> dict[str, str]:
    """Return every diagram by its file name."""
    return {
        "algorithm.svg": sequence(
            "The algorithm",
            "A worker receives a message, claims it, runs the handler, commits, sends, deletes the record and acknowledges.",
            ("Broker", "Worker", "Database"),
            (
                Step(0, 1, "receive the message"),
                Step(1, 2, "begin, and claim the message"),
                Step(2, 1, "the claim is new"),
                Step(1, 1, "run the handler"),
                Step(1, 2, "commit data, claim, record", "commit"),
                Step(1, 0, "dispatch the handler's messages"),
                Step(1, 2, "forget the record"),
                Step(1, 0, "ack"),
            ),
        ),
        "crashes.svg": crashes(),
        "other-crashes.svg": other_crashes(),
        "duplicate.svg": sequence(
            "A message that comes again",
            "The claim exists already. If a record is pending, its messages are sent. The handler does not run.",
            ("Broker", "Worker", "Database"),
            (
                Step(0, 1, "receive the message again"),
                Step(1, 2, "begin, and claim the message"),
                Step(2, 1, "the claim exists"),
                Step(1, 1, "the handler does not run"),
                Step(1, 0, "a pending record: dispatch"),
                Step(1, 2, "forget the record, if any"),
                Step(1, 0, "ack"),
            ),
        ),
        "buckets.svg": buckets(),
        "tokens.svg": sequence(
            "Tokens",
            "The sender prepares a token, commits, and makes it live. The receiver handles the message while it is.",
            ("Sender", "Token store", "Receiver"),
            (
                Step(0, 1, "prepare a token"),
                Step(0, 0, "commit, with the token's id", "commit"),
                Step(0, 1, "activate the token"),
                Step(0, 2, "send the message with the token"),
                Step(2, 1, "is the token live?"),
                Step(2, 2, "handle, commit, dispatch", "commit"),
                Step(2, 1, "delete the token"),
                Step(2, 2, "a copy finds no token: dropped"),
            ),
        ),
        "control-messages.svg": sequence(
            "Control messages",
            "A delayed control message is sent before the commit. A worker that receives it finishes the transaction.",
            ("Transaction", "Broker", "Worker", "Document"),
            (
                Step(0, 1, "control message"),
                Step(0, 3, "save state, record and key", "commit"),
                Step(0, 0, "the process dies", "crash"),
                Step(1, 2, "it is due"),
                Step(2, 3, "read the record"),
                Step(2, 1, "dispatch its messages"),
                Step(2, 3, "empty the record"),
                Step(2, 1, "ack"),
            ),
        ),
    }
