"""Operations on the syntax tree of one function, class or module. Each raises DoesNotApply if its target is not there once."""

from onceonly_verify.mutations import edits
from onceonly_verify.mutations.edits import EditOperation
from onceonly_verify.mutations.places import CodePlace, Where, answer, argument, operand, place
from onceonly_verify.mutations.snippets import Code


def _code(text: str, places: dict[str, CodePlace]) -> Code:
    return Code(text, tuple(places.items()))


def drop(where: Where) -> EditOperation:
    """Remove a statement, or a call whose answer is not used."""
    found = place(where)
    return EditOperation(change=edits.drop, words=f"drops {found.words}", where=found)


def drop_operand(where: Where) -> EditOperation:
    """Remove an operand of `and` or `or`."""
    found = operand(where)
    return EditOperation(change=edits.drop_operand, words=f"drops {found.words}", where=found)


def drop_filter(where: Where) -> EditOperation:
    """Remove the condition of a comprehension."""
    found = place(where)
    return EditOperation(change=edits.drop_filter, words=f"drops {found.words}", where=found)


def drop_element(where: Where) -> EditOperation:
    """Remove an element of a tuple, such as an error that an `except` clause names."""
    found = place(where)
    return EditOperation(change=edits.drop_element, words=f"drops {found.words}", where=found)


def drop_argument(of: Where, key: int | str) -> EditOperation:
    """Remove an argument of a call, by its position (from 0) or its name."""
    found = argument(of, key)
    return EditOperation(change=edits.drop_argument, words=f"drops {found.words}", where=found)


def swap(first: Where, second: Where) -> EditOperation:
    """Swap the statements of two places in one block."""
    one, two = place(first), place(second)
    return EditOperation(change=edits.swap, words=f"swaps {one.words} and {two.words}", where=one, other=two)


def move_before(where: Where, target: Where) -> EditOperation:
    """Move a statement before that of another place."""
    one, two = place(where), place(target)
    return EditOperation(change=edits.move_before, words=f"moves {one.words} before {two.words}", where=one, other=two)


def insert_before(where: Where, code: str, **names: CodePlace) -> EditOperation:
    """Add statements before that of a place."""
    found, new = place(where), _code(code, names)
    return EditOperation(change=edits.insert_before, words=f"adds {new.words} before {found.words}", where=found, code=new)


def insert_after(where: Where, code: str, **names: CodePlace) -> EditOperation:
    """Add statements after that of a place."""
    found, new = place(where), _code(code, names)
    return EditOperation(change=edits.insert_after, words=f"adds {new.words} after {found.words}", where=found, code=new)


def insert_first(code: str, *, inside: Where | None = None, **names: CodePlace) -> EditOperation:
    """Add statements at the beginning of the function, or of an `except` clause."""
    new, found = _code(code, names), inside and place(inside)
    where = f" in {found.words}" if found else ""
    return EditOperation(change=edits.insert_first, words=f"adds {new.words} first{where}", where=found or None, code=new)


def replace(where: Where, code: str, **names: CodePlace) -> EditOperation:
    """Replace an expression; in the new one `old` stands for it."""
    found, new = place(where), _code(code, names)
    return EditOperation(change=edits.replace, words=f"puts {new.words} in place of {found.words}", where=found, code=new)


def replace_answer(of: Where, code: str, **names: CodePlace) -> EditOperation:
    """Take a value for the answer of a call that is not made."""
    found, new = answer(of), _code(code, names)
    return EditOperation(change=edits.replace, words=f"takes {new.words} for {found.words}", where=found, code=new)


def replace_statement(where: Where, code: str, **names: CodePlace) -> EditOperation:
    """Replace the whole statement of a place."""
    found, new = place(where), _code(code, names)
    words = f"runs {new.words} instead of {found.words}"
    return EditOperation(change=edits.replace_statement, words=words, where=found, code=new)


def replace_body(code: str) -> EditOperation:
    """Replace all that a function does."""
    new = Code(code)
    return EditOperation(change=edits.replace_body, words=f"does only {new.words}", code=new)


def keep_only(part: Where, of: Where) -> EditOperation:
    """Replace an expression by a part of it."""
    found, kept = place(of), place(part)
    return EditOperation(change=edits.keep_only, words=f"keeps only {kept.words}", where=found, other=kept)


def compare(where: Where, operator: str, code: str) -> EditOperation:
    """Compare the left side of a comparison with another value, by another operator."""
    found, new = place(where), Code(f"left {operator} {code}")
    words = f"turns {found.words} into `{operator} {code}`"
    return EditOperation(change=edits.compare, words=words, where=found, code=new)


def always(where: Where) -> EditOperation:
    """Take a condition for true."""
    found = place(where)
    return EditOperation(change=edits.replace, words=f"takes {found.words} for true", where=found, code=Code("True"))


def never(where: Where) -> EditOperation:
    """Take a condition for false."""
    found = place(where)
    return EditOperation(change=edits.replace, words=f"takes {found.words} for false", where=found, code=Code("False"))


def negate(where: Where) -> EditOperation:
    """Turn a condition around."""
    found = place(where)
    return EditOperation(change=edits.replace, words=f"negates {found.words}", where=found, code=Code("not old"))


def first_only(where: Where) -> EditOperation:
    """Take the first element of a sequence only."""
    found = place(where)
    words = f"takes the first element only of {found.words}"
    return EditOperation(change=edits.replace, words=words, where=found, code=Code("old[:1]"))


def add_argument(of: Where, key: str, code: str, **names: CodePlace) -> EditOperation:
    """Pass one more argument to a call: by this name, or last by position if it is empty."""
    found, new = place(of), _code(code, names)
    passed = f"`{key}={code}`" if key else new.words
    words = f"passes {passed} to {found.words}"
    return EditOperation(change=edits.add_argument, words=words, where=found, code=new, key=key)


def add_element(of: Where, key: int, code: str, **names: CodePlace) -> EditOperation:
    """Add an element to a tuple at a position (from 0)."""
    found, new = place(of), _code(code, names)
    return EditOperation(change=edits.add_element, words=f"adds {new.words} to {found.words}", where=found, code=new, key=key)


def ignore_answer(of: Where) -> EditOperation:
    """Make a call, and assign its answer to nothing."""
    found = place(of)
    return EditOperation(change=edits.ignore_answer, words=f"ignores the answer of {found.words}", where=found)


def swallow(where: Where, error: str, code: str = "pass", **names: CodePlace) -> EditOperation:
    """Catch an error of one statement, and go on after running this code."""
    found, new = place(where), _code(code, names)
    after = "" if code == "pass" else f" and runs {new.words}"
    words = f"catches `{error}` of {found.words}{after}"
    return EditOperation(change=edits.swallow, words=words, where=found, code=new, key=error)


def add_handler(where: Where, error: str, code: str = "pass") -> EditOperation:
    """Add a first `except` clause to a `try` statement."""
    found, new = place(where), Code(code)
    after = "" if code == "pass" else f" and runs {new.words}"
    words = f"catches `{error}` in {found.words}{after}"
    return EditOperation(change=edits.add_handler, words=words, where=found, code=new, key=error)


def enclose(where: Where, manager: str) -> EditOperation:
    """Put a statement into a `with` statement."""
    found = place(where)
    return EditOperation(
        change=edits.enclose, words=f"puts {found.words} into `with {manager}`", where=found, code=Code(manager)
    )


def add_parameter(code: str, *, before: str = "") -> EditOperation:
    """Add a parameter, written as in a signature: `name`, `name=default` or `*, name=default`; last unless `before` another."""
    return EditOperation(change=edits.add_parameter, code=Code(code), key=before)


def add_field(code: str, *, after: str) -> EditOperation:
    """Add a field to a class after another one."""
    return EditOperation(change=edits.add_field, code=Code(code), key=after)


def define(code: str) -> EditOperation:
    """Add a function or a variable to a module, or a method to a class."""
    return EditOperation(change=edits.define, code=Code(code))


def imports(module: str, *names: str) -> EditOperation:
    """Import names into a module."""
    return EditOperation(
        change=edits.imports, code=Code(f"from {module} import {', '.join(names)}" if names else f"import {module}")
    )
