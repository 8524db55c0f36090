"""What the text of a SQL statement does to the transaction or the session that it is executed in.

Handlers of one unit share a database transaction. Each must behave as if it had one of its own. The effect of a statement such
as SET LOCAL lasts until the end of the transaction, so it would reach the handlers that follow. Its message therefore runs in a
unit of one. Some effects outlive the transaction, such as those of a temporary table. Such a connection is reset or closed
before anything else uses it.

Only the text is looked at. What a function does on the server is not seen.
"""

import re
from collections.abc import Callable, Sequence
from enum import Flag, auto
from functools import lru_cache
from typing import NamedTuple

LONGEST_KNOWN, STATEMENTS_KNOWN = 2000, 500
"""The longest statement, in characters, whose effect is remembered, and the number of these. Together at most 4 MB of text."""


class Effect(Flag):
    """What a statement does beyond reading and writing rows."""

    ENDS = auto()
    """Begins or ends the transaction."""
    ROLLS_BACK = auto()
    """Rolls back to a savepoint."""
    OWN = auto()
    """Lasts until the end of the transaction, at least."""
    SETS = auto()
    """Changes how later statements are executed."""
    SETS_SESSION = auto()
    """Changes a setting of the session, which outlives the transaction."""
    LEAVES = auto()
    """Leaves something in the session, which outlives the transaction."""
    REFUSED = auto()
    """Cannot be undone or supported."""


LOCAL = Effect.OWN | Effect.SETS
SESSION = Effect.OWN | Effect.SETS | Effect.SETS_SESSION
LEFT = Effect.OWN | Effect.LEAVES
COMMENTS = r"(?:\s|--[^\n]*+|(?>/\*.*?\*/)|;)*+"
"""What may stand before a statement. Nothing is tried twice: hostile text would take a time that doubles with each comment."""


class Rule(NamedTuple):
    """A pattern of SQL text, and its effect.

    `needle` is a text in lower case that each such text contains, or empty for a statement that begins with the pattern.
    `advice` is what to do instead of a statement that is refused.
    """

    pattern: "re.Pattern[str]"
    effect: Effect
    needle: str = ""
    advice: str = ""

    def applies(self, statement: str, lower: str) -> bool:
        """Return whether a text has the effect. `lower` is the same in lower case."""
        if self.needle:
            return self.needle in lower and self.pattern.search(statement) is not None
        if ";" not in statement:
            return self.pattern.match(statement) is not None
        return self.pattern.search(statement) is not None


def begins(words: str, effect: Effect, advice: str = "", *, comments: str = COMMENTS) -> Rule:
    """Return the rule for a statement that begins with these words, also behind another one in the same text."""
    return Rule(re.compile(rf"(?:^|;){comments}(?:{words})", re.IGNORECASE | re.DOTALL), effect, advice=advice)


def contains(needle: str, words: str, effect: Effect) -> Rule:
    """Return the rule for a text that contains these words, and so the `needle`, which is found faster."""
    return Rule(re.compile(words, re.IGNORECASE | re.DOTALL), effect, needle)


_ENDING = re.compile(
    rf"{COMMENTS}(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:TRANSACTION|WORK)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
_ROLLBACK_TO = re.compile(rf"{COMMENTS}ROLLBACK\b", re.IGNORECASE | re.DOTALL)  # what else rolls back ends the transaction
_OF_SQLALCHEMY = ("SAVEPOINT sa_savepoint_", "RELEASE SAVEPOINT sa_savepoint_", "ROLLBACK TO SAVEPOINT sa_savepoint_")
"""SQLAlchemy's own savepoints. They end with their handler."""
_COMMENT = re.compile(r"/\*(?!M?!)(?:[^*/]|\*(?!/)|/(?!\*))*+\*/|--[^\n]*+")
"""A comment without another one inside. MariaDB executes what is in `/*! ... */` and `/*M! ... */`."""
NESTED = 3
"""How deep comments are removed that are inside of each other."""
TEMPORARY = r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:LOCAL|GLOBAL)\s+)?TEMP(?:ORARY)?\b"
ISOLATION = "Set isolation= where the handler is registered: the transaction has begun already"
STANDARD: Sequence[Rule] = (
    begins(r"SAVEPOINT\b|RELEASE\b|ROLLBACK\s+(?:(?:TRANSACTION|WORK)\s+)?TO\b", Effect.OWN),
    begins(r"SET\s+TRANSACTION\b", Effect.REFUSED, ISOLATION),
)
"""The rules that hold for every database."""


class StatementEffects:
    """Finds the effect of a text by rules, which are those of one database. Remembers it for texts that are not too long."""

    def __init__(self, *rules: Rule) -> None:
        self._rules = (*STANDARD, *rules)
        self._known: Callable[[str], Effect | None] = lru_cache(maxsize=STATEMENTS_KNOWN)(self._find)

    def __call__(self, statement: str) -> Effect | None:
        """Return the effect. None: it reads and writes rows."""
        return self._known(statement) if len(statement) <= LONGEST_KNOWN else self._find(statement)

    def advice(self, statement: str) -> str:
        """Return what to do instead of a statement that is refused."""
        lower = statement.lower()
        return next((rule.advice for rule in self._rules if rule.advice and rule.applies(statement, lower)), "")

    def _find(self, statement: str) -> Effect | None:
        if statement.startswith(_OF_SQLALCHEMY):
            return Effect.ROLLS_BACK if statement.startswith("ROLLBACK") else None
        if _ENDING.match(statement):
            return Effect.ENDS
        found = Effect.ROLLS_BACK if _ROLLBACK_TO.match(statement) else Effect(0)
        lower = statement.lower()
        for rule in self._rules:
            if rule.applies(statement, lower):
                found |= rule.effect
        if (bare := _without_comments(statement)) is not statement:
            found |= self._find(bare) or Effect(0)
        return found or None


def _without_comments(statement: str) -> str:
    """Return a text without comments, also between words; the same object if it has none."""
    for _ in range(NESTED):
        if "--" not in statement and "/*" not in statement:
            break
        bare = _COMMENT.sub(" ", statement)
        if bare == statement:
            break
        statement = bare
    return statement


_WRITES = re.compile(
    rf"{COMMENTS}(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|CREATE|ALTER|DROP|TRUNCATE|RENAME)\b", re.IGNORECASE | re.DOTALL
)
_WITH = re.compile(rf"{COMMENTS}WITH\b", re.IGNORECASE | re.DOTALL)
_WRITES_INSIDE = re.compile(r"\b(?:INSERT\s+INTO|DELETE\s+FROM|MERGE\s+INTO|UPDATE\s+[^\s;]+\s+SET)\b", re.IGNORECASE)


@lru_cache(maxsize=STATEMENTS_KNOWN)
def _does_write(statement: str) -> bool:
    if _WITH.match(statement):
        return _WRITES_INSIDE.search(statement) is not None
    return _WRITES.match(statement) is not None


def does_write(statement: str) -> bool:
    """Return whether a statement changes rows or tables, as its first `LONGEST_KNOWN` characters say."""
    return _does_write(statement[:LONGEST_KNOWN])
