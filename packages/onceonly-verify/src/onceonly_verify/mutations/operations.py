"""Operations on the syntax tree of one function, class or module. Each raises DoesNotApply if its target is not there once."""

from onceonly_verify.mutations import edits
from onceonly_verify.mutations.edits import Operation
from onceonly_verify.mutations.places import Place, Where, answer, argument, operand, place
from onceonly_verify.mutations.snippets import Code


def _code(text: str, places: dict[str, Place]) -> Code:
    return Code(text, tuple(places.items()))


def drop(where: Where) -> Operation:
    """Remove a statement, or a call whose answer is not used."""
    found = place(where)
    return Operation(change=edits.drop, words=f"drops {found.words}", where=found)


def drop_operand(where: Where) -> Operation:
    """Remove an operand of `and` or `or`."""
    found = operand(where)
    return Operation(change=edits.drop_operand, words=f"drops {found.words}", where=found)


def drop_filter(where: Where) -> Operation:
    """Remove the condition of a comprehension."""
    found = place(where)
    return Operation(change=edits.drop_filter, words=f"drops {found.words}", where=found)


def drop_element(where: Where) -> Operation:
    """Remove an element of a tuple, such as an error that an `except` clause names."""
    found = place(where)
    return Operation(change=edits.drop_element, words=f"drops {found.words}", where=found)


def drop_argument(of: Where, key: int | str) -> Operation:
    """Remove an argument of a call, by its position (from 0) or its name."""
    found = argument(of, key)
    return Operation(change=edits.drop_argument, words=f"drops {found.words}", where=found)


def swap(first: Where, second: Where) -> Operation:
    """Swap the statements of two places in one block."""
    one, two = place(first), place(second)
    return Operation(change=edits.swap, words=f"swaps {one.words} and {two.words}", where=one, other=two)


def move_before(where: Where, target: Where) -> Operation:
    """Move a statement before that of another place."""
    one, two = place(where), place(target)
    return Operation(change=edits.move_before, words=f"moves {one.words} before {two.words}", where=one, other=two)


def insert_before(where: Where, code: str, **names: Place) -> Operation:
    """Add statements before that of a place."""
    found, new = place(where), _code(code, names)
    return Operation(change=edits.insert_before, words=f"adds {new.words} before {found.words}", where=found, code=new)


def insert_after(where: Where, code: str, **names: Place) -> Operation:
    """Add statements after that of a place."""
    found, new = place(where), _code(code, names)
    return Operation(change=edits.insert_after, words=f"adds {new.words} after {found.words}", where=found, code=new)


def insert_first(code: str, *, inside: Where | None = None, **names: Place) -> Operation:
    """Add statements at the beginning of the function, or of an `except` clause."""
    new, found = _code(code, names), inside and place(inside)
    where = f" in {found.words}" if found else ""
    return Operation(change=edits.insert_first, words=f"adds {new.words} first{where}", where=found or None, code=new)


def return_early(code: str, **names: Place) -> Operation:
    """Return a value at the beginning of the function."""
    new = _code(f"return {code}", names)
    return Operation(change=edits.insert_first, words=f"returns `{code}` at once", code=new)


def replace(where: Where, code: str, **names: Place) -> Operation:
    """Replace an expression; in the new one `old` stands for it."""
    found, new = place(where), _code(code, names)
    return Operation(change=edits.replace, words=f"puts {new.words} in place of {found.words}", where=found, code=new)


def replace_answer(of: Where, code: str, **names: Place) -> Operation:
    """Take a value for the answer of a call that is not made."""
    found, new = answer(of), _code(code, names)
    return Operation(change=edits.replace, words=f"takes {new.words} for {found.words}", where=found, code=new)


def replace_statement(where: Where, code: str, **names: Place) -> Operation:
    """Replace the whole statement of a place."""
    found, new = place(where), _code(code, names)
    words = f"runs {new.words} instead of {found.words}"
    return Operation(change=edits.replace_statement, words=words, where=found, code=new)


def replace_body(code: str) -> Operation:
    """Replace all that a function does."""
    new = Code(code)
    return Operation(change=edits.replace_body, words=f"does only {new.words}", code=new)


def keep_only(part: Where, of: Where) -> Operation:
    """Replace an expression by a part of it."""
    found, kept = place(of), place(part)
    return Operation(change=edits.keep_only, words=f"keeps only {kept.words}", where=found, other=kept)


def compare(where: Where, operator: str, code: str) -> Operation:
    """Compare the left side of a comparison with another value, by another operator."""
    found, new = place(where), Code(f"left {operator} {code}")
    words = f"turns {found.words} into `{operator} {code}`"
    return Operation(change=edits.compare, words=words, where=found, code=new)


def always(where: Where) -> Operation:
    """Take a condition for true."""
    found = place(where)
    return Operation(change=edits.replace, words=f"takes {found.words} for true", where=found, code=Code("True"))


def never(where: Where) -> Operation:
    """Take a condition for false."""
    found = place(where)
    return Operation(change=edits.replace, words=f"takes {found.words} for false", where=found, code=Code("False"))


def negate(where: Where) -> Operation:
    """Turn a condition around."""
    found = place(where)
    return Operation(change=edits.replace, words=f"negates {found.words}", where=found, code=Code("not old"))


def first_only(where: Where) -> Operation:
    """Take the first element of a sequence only."""
    found = place(where)
    words = f"takes the first element only of {found.words}"
    return Operation(change=edits.replace, words=words, where=found, code=Code("old[:1]"))


def add_argument(of: Where, key: str, code: str, **names: Place) -> Operation:
    """Pass one more argument to a call: by this name, or last by position if it is empty."""
    found, new = place(of), _code(code, names)
    passed = f"`{key}={code}`" if key else new.words
    words = f"passes {passed} to {found.words}"
    return Operation(change=edits.add_argument, words=words, where=found, code=new, key=key)


def add_element(of: Where, key: int, code: str, **names: Place) -> Operation:
    """Add an element to a tuple at a position (from 0)."""
    found, new = place(of), _code(code, names)
    return Operation(change=edits.add_element, words=f"adds {new.words} to {found.words}", where=found, code=new, key=key)


def ignore_answer(of: Where) -> Operation:
    """Make a call, and assign its answer to nothing."""
    found = place(of)
    return Operation(change=edits.ignore_answer, words=f"ignores the answer of {found.words}", where=found)


def swallow(where: Where, error: str, code: str = "pass", **names: Place) -> Operation:
    """Catch an error of one statement, and go on after running this code."""
    found, new = place(where), _code(code, names)
    after = "" if code == "pass" else f" and runs {new.words}"
    words = f"catches `{error}` of {found.words}{after}"
    return Operation(change=edits.swallow, words=words, where=found, code=new, key=error)


def add_handler(where: Where, error: str, code: str = "pass") -> Operation:
    """Add a first `except` clause to a `try` statement."""
    found, new = place(where), Code(code)
    after = "" if code == "pass" else f" and runs {new.words}"
    words = f"catches `{error}` in {found.words}{after}"
    return Operation(change=edits.add_handler, words=words, where=found, code=new, key=error)


def enclose(where: Where, manager: str) -> Operation:
    """Put a statement into a `with` statement."""
    found = place(where)
    return Operation(change=edits.enclose, words=f"puts {found.words} into `with {manager}`", where=found, code=Code(manager))


def add_parameter(code: str, *, before: str = "") -> Operation:
    """Add a parameter, written as in a signature: `name`, `name=default` or `*, name=default`; last unless `before` another."""
    return Operation(change=edits.add_parameter, code=Code(code), key=before)


def add_field(code: str, *, after: str) -> Operation:
    """Add a field to a class after another one."""
    return Operation(change=edits.add_field, code=Code(code), key=after)


def define(code: str) -> Operation:
    """Add a function or a variable to a module, or a method to a class."""
    return Operation(change=edits.define, code=Code(code))


def imports(module: str, *names: str) -> Operation:
    """Import names into a module."""
    return Operation(
        change=edits.imports, code=Code(f"from {module} import {', '.join(names)}" if names else f"import {module}")
    )
