"""Mutants that a person has judged: equivalent ones, each with its proof, and known survivors, each with the reason.

Both lists are text files of this package. Names stand at the margin, without `generated: `; an indented line below one or
several names says why. The list of places without coverage has the same form.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from onceonly.model.errors import OnceOnlyError
from onceonly_verify.generated.generator import PREFIX


class ListedTwice(OnceOnlyError):
    """A name is in a list twice, or has no reason."""


@cache
def equivalents() -> Mapping[str, str]:
    """Return the proofs why mutants do what the shipping code does, by name."""
    return parse((files(__package__) / "equivalents.txt").read_text("utf-8"))


@cache
def known_survivors() -> Mapping[str, str]:
    """Return why mutants survive that are not equivalent, by name."""
    return parse((files(__package__) / "survivors.txt").read_text("utf-8"))


def parse(text: str, *, prefix: str = PREFIX) -> Mapping[str, str]:
    """Read a list; `prefix` comes before each name. Raises ListedTwice."""
    found: dict[str, str] = {}
    names: list[str] = []
    reasoned = True
    for line in text.splitlines():
        if not line.strip() or line.startswith("# "):
            continue
        if line[0].isspace():
            reasoned = True
            for name in names:
                found[name] = f"{found[name]} {line.strip()}".strip()
            continue
        if reasoned:
            names, reasoned = [], False
        names.append(name := prefix + line.strip())
        if name in found:
            raise ListedTwice(f"{name!r} is listed twice")
        found[name] = ""
    if unreasoned := [name for name, why in found.items() if not why]:
        raise ListedTwice(f"{unreasoned[0]!r} has no reason below it")
    return found
