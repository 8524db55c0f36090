"""Places in a function: what an operation changes, and the variables that its new code uses.

A place is found by what the code does, not by how it is written: the call to a port's method, the argument of a call, the
variable that receives an answer. Renaming a local variable or formatting the code changes no place.
"""

import ast
from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct

from onceonly_verify.mutations import steps
from onceonly_verify.mutations.scope import DefinitionScope, DoesNotApply, is_named


class CodePlace(Struct, frozen=True, kw_only=True):
    """A place in a function. Without `nth` it must be unique; `within` limits the search."""

    within: "CodePlace | None" = None
    nth: int | None = None
    noun: ClassVar[str] = ""

    @property
    def words(self) -> str:
        """Return in plain words what it is."""
        which = "" if self.nth is None else f"{_ordinal(self.nth)} "
        inside = f" within {self.within.words}" if self.within else ""
        return f"the {which}{self._noun()}{inside}"

    def one(self, scope: DefinitionScope) -> ast.AST:
        """Find its node. Raises DoesNotApply."""
        found = self.find(scope)
        if len(found) != 1:
            raise DoesNotApply(f"{self.words} is there {len(found)} times; once is required")
        return found[0]

    def find(self, scope: DefinitionScope) -> list[ast.AST]:
        nodes = list(scope.nodes(self.within.find(scope) if self.within else ()))
        found = self._outermost(scope, [node for node in nodes if self._fits(scope, node)])
        return found if self.nth is None else found[self.nth :][:1]

    def _noun(self) -> str:
        raise NotImplementedError

    def _fits(self, scope: DefinitionScope, node: ast.AST) -> bool:
        raise NotImplementedError

    def _outermost(self, scope: DefinitionScope, found: list[ast.AST]) -> list[ast.AST]:
        return found


class CallPlace(CodePlace, frozen=True, kw_only=True):
    """A call, by the name of what is called, what it mentions, and which argument it passes by name."""

    name: str
    having: str = ""
    passing: str = ""

    def _noun(self) -> str:
        details = [f" that mentions `{self.having}`"] if self.having else []
        details += [f" that passes `{self.passing}`"] if self.passing else []
        return f"call to `{self.name}`{' and'.join(details)}"

    def _fits(self, scope: DefinitionScope, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or not is_named(scope, node.func, self.name):
            return False
        if self.having and not _mentions(scope, node, (self.having,)):
            return False
        return not self.passing or self.passing in [keyword.arg for keyword in node.keywords]


class CrashPoint(CodePlace, frozen=True, kw_only=True):
    """The call that is a crash point of this name: its first argument is the name."""

    name: str

    def _noun(self) -> str:
        return f"crash point `{self.name}`"

    def _fits(self, scope: DefinitionScope, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or not node.args:
            return False
        return isinstance(node.args[0], ast.Constant) and node.args[0].value == self.name


class MentionPlace(CodePlace, frozen=True, kw_only=True):
    """A node of some kind, by what it mentions: functions, attributes, parameters, or variables found by a place."""

    mentions: tuple["str | CodePlace", ...]

    def _noun(self) -> str:
        about = " and ".join(f"`{each}`" if isinstance(each, str) else each.words for each in self.mentions)
        return f"{self.noun} {about}" if about else self.noun.rpartition(" ")[0]

    def _fits(self, scope: DefinitionScope, node: ast.AST) -> bool:
        return self._is_one(scope, node) and _mentions(scope, node, self.mentions)

    def _is_one(self, scope: DefinitionScope, node: ast.AST) -> bool:
        raise NotImplementedError

    def _outermost(self, scope: DefinitionScope, found: list[ast.AST]) -> list[ast.AST]:
        return [node for node in found if not any(parent in found for _, parent in scope.ancestors(node))]


class Condition(MentionPlace, frozen=True, kw_only=True):
    """The condition of an `if`, a conditional expression or a comprehension."""

    noun: ClassVar[str] = "condition on"

    def _is_one(self, scope: DefinitionScope, node: ast.AST) -> bool:
        parent = scope.parent(node)
        if isinstance(parent, ast.If | ast.IfExp | ast.While):
            return node is parent.test
        return isinstance(parent, ast.comprehension) and node in parent.ifs


class Comparison(MentionPlace, frozen=True, kw_only=True):
    noun: ClassVar[str] = "comparison with"

    def _is_one(self, scope: DefinitionScope, node: ast.AST) -> bool:
        return isinstance(node, ast.Compare)


class LoopPlace(MentionPlace, frozen=True, kw_only=True):
    """A `for` statement, by what it iterates over."""

    noun: ClassVar[str] = "loop over"

    def _fits(self, scope: DefinitionScope, node: ast.AST) -> bool:
        return isinstance(node, ast.For) and _mentions(scope, node.iter, self.mentions)


class Handler(MentionPlace, frozen=True, kw_only=True):
    """An `except` clause, by an error that it names."""

    noun: ClassVar[str] = "handler of"

    def _fits(self, scope: DefinitionScope, node: ast.AST) -> bool:
        return isinstance(node, ast.ExceptHandler) and node.type is not None and _mentions(scope, node.type, self.mentions)


class RaisePlace(MentionPlace, frozen=True, kw_only=True):
    """A `raise` statement."""

    noun: ClassVar[str] = "raise of"

    def _is_one(self, scope: DefinitionScope, node: ast.AST) -> bool:
        return isinstance(node, ast.Raise)


class ReturnPlace(MentionPlace, frozen=True, kw_only=True):
    """The value that a `return` statement returns."""

    noun: ClassVar[str] = "returned value with"

    def _is_one(self, scope: DefinitionScope, node: ast.AST) -> bool:
        return isinstance(scope.parent(node), ast.Return)


class NamePlace(CodePlace, frozen=True, kw_only=True):
    """A name or an attribute, wherever it is used."""

    name: str

    def _noun(self) -> str:
        return f"use of `{self.name}`"

    def _fits(self, scope: DefinitionScope, node: ast.AST) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and is_named(scope, node, self.name)


Step = Callable[[DefinitionScope, ast.AST, "int | str | None"], Sequence[ast.AST]]


class RelatedPlace(CodePlace, frozen=True, kw_only=True):
    """What one step leads to from another place: an argument of a call, the variable that receives its answer."""

    of: CodePlace
    step: Step
    phrase: str
    key: int | str | None = None

    @property
    def words(self) -> str:
        """Return in plain words what it is."""
        name = f"`{self.key}`" if isinstance(self.key, str) else ""
        which = f"{_ordinal(self.key)} " if isinstance(self.key, int) else ""
        return self.phrase.format(of=self.of.words, name=name, which=which).replace("  ", " ")

    def find(self, scope: DefinitionScope) -> list[ast.AST]:
        found = list(self.step(scope, self.of.one(scope), self.key))
        if not found:
            raise DoesNotApply(f"there is no {self.words.removeprefix('the ')}")
        return found


Where = str | CodePlace
"""A place; a text is the call to what has this name."""


def place(where: Where) -> CodePlace:
    """Return the place itself, or the call to what has this name."""
    return CallPlace(name=where) if isinstance(where, str) else where


def _region(where: Where | None) -> CodePlace | None:
    return None if where is None else place(where)


def call(name: str, *, having: str = "", passing: str = "", within: Where | None = None, nth: int | None = None) -> CodePlace:
    """Find the call to `name`, a function or the end of a dotted name such as `store.forget`."""
    return CallPlace(name=name, having=having, passing=passing, within=_region(within), nth=nth)


def point(name: str) -> CodePlace:
    """Find the call that has this crash point's name as its first argument."""
    return CrashPoint(name=name)


def condition(*mentions: "str | CodePlace", within: Where | None = None) -> CodePlace:
    """Find the condition that mentions all of these."""
    return Condition(mentions=mentions, within=_region(within))


def comparison(*mentions: "str | CodePlace", within: Where | None = None) -> CodePlace:
    """Find the comparison that mentions all of these."""
    return Comparison(mentions=mentions, within=_region(within))


def loop(*mentions: "str | CodePlace") -> CodePlace:
    """Find the `for` statement that iterates over what mentions all of these."""
    return LoopPlace(mentions=mentions)


def handler(*errors: str) -> CodePlace:
    """Find the `except` clause that names these errors."""
    return Handler(mentions=errors)


def raised(error: str) -> CodePlace:
    """Find the `raise` statement of this error."""
    return RaisePlace(mentions=(error,))


def returned(*mentions: "str | CodePlace") -> CodePlace:
    """Find the value of the `return` statement that mentions all of these."""
    return ReturnPlace(mentions=mentions)


def named(name: str, *, nth: int | None = None) -> CodePlace:
    """Find where this name or attribute is used."""
    return NamePlace(name=name, nth=nth)


def argument(of: Where, key: int | str) -> CodePlace:
    """Find an argument of a call, by its position (from 0) or its name."""
    return RelatedPlace(of=place(of), step=steps.argument, key=key, phrase="the {which}argument {name} of {of}")


def element(of: Where, key: int) -> CodePlace:
    """Find an element of a tuple or a list, from 0."""
    return RelatedPlace(of=place(of), step=steps.element, key=key, phrase="the {which}element of {of}")


def receiver(of: Where) -> CodePlace:
    """Find the object whose method is called."""
    return RelatedPlace(of=place(of), step=steps.receiver, phrase="the object of {of}")


def answer(of: Where) -> CodePlace:
    """Find the call together with its `await`: its answer."""
    return RelatedPlace(of=place(of), step=steps.answer, phrase="the answer of {of}")


def result_of(of: Where, key: int | None = None) -> CodePlace:
    """Find the variable that the statement of this place assigns; of several, the one paired with it or number `key`."""
    return RelatedPlace(of=place(of), step=steps.result, key=key, phrase="the result of {of}")


def source_of(of: Where) -> CodePlace:
    """Find the value that is assigned to the variable in this place."""
    return RelatedPlace(of=place(of), step=steps.source, phrase="the value of {of}")


def assigned(of: Where) -> CodePlace:
    """Find the value of the assignment that this place is in."""
    return RelatedPlace(of=place(of), step=steps.assigned, phrase="the value assigned with {of}")


def statement(of: Where) -> CodePlace:
    """Find the statement that this place is in."""
    return RelatedPlace(of=place(of), step=steps.statement, phrase="the statement with {of}")


def guard(of: Where) -> CodePlace:
    """Find the condition under which this place is reached."""
    return RelatedPlace(of=place(of), step=steps.guard, phrase="the condition of {of}")


def branch(of: Where) -> CodePlace:
    """Find the `if` statement whose condition this place is in."""
    return RelatedPlace(of=place(of), step=steps.branch, phrase="the `if` with {of}")


def then(of: Where) -> CodePlace:
    """Find the statements that run if the condition that this place is in holds."""
    return RelatedPlace(of=place(of), step=steps.then, phrase="what runs after {of}")


def otherwise(of: Where) -> CodePlace:
    """Find the `else` of the `if` statement that this place is in."""
    return RelatedPlace(of=place(of), step=steps.otherwise, phrase="the else of {of}")


def attempt(of: Where) -> CodePlace:
    """Find the `try` statement that this place is in."""
    return RelatedPlace(of=place(of), step=steps.attempt, phrase="the try statement of {of}")


def operand(of: Where) -> CodePlace:
    """Find the operand of `and` or `or` that this place is in."""
    return RelatedPlace(of=place(of), step=steps.operand, phrase="the operand with {of}")


def left(of: Where) -> CodePlace:
    """Find the left side of a comparison or an operator."""
    return RelatedPlace(of=place(of), step=steps.left, phrase="the left side of {of}")


def right(of: Where) -> CodePlace:
    """Find the right side of a comparison or an operator."""
    return RelatedPlace(of=place(of), step=steps.right, phrase="the right side of {of}")


def root(of: Where) -> CodePlace:
    """Find the variable at the beginning of `variable.attribute`."""
    return RelatedPlace(of=place(of), step=steps.root, phrase="the variable at the beginning of {of}")


def index_of(of: Where) -> CodePlace:
    """Find the index of `variable[index]`."""
    return RelatedPlace(of=place(of), step=steps.index, phrase="the index in {of}")


def lower_bound(of: Where) -> CodePlace:
    """Find the lower bound of `variable[lower:upper]`."""
    return RelatedPlace(of=place(of), step=steps.lower_bound, phrase="the lower bound of {of}")


def iterated(of: Where) -> CodePlace:
    """Find what the comprehension or the loop in this place iterates over."""
    return RelatedPlace(of=place(of), step=steps.iterated, phrase="the sequence of {of}")


def each(of: Where) -> CodePlace:
    """Find the variable of the comprehension or the loop in this place."""
    return RelatedPlace(of=place(of), step=steps.each, phrase="each of {of}")


def produced(of: Where) -> CodePlace:
    """Find what the comprehension in this place makes of each element."""
    return RelatedPlace(of=place(of), step=steps.produced, phrase="the element that {of} produces")


def _ordinal(number: int) -> str:
    return {-1: "last", 0: "first", 1: "second", 2: "third"}.get(number, f"{number + 1}th")


def _mentions(scope: DefinitionScope, node: ast.AST, names: Sequence[str | CodePlace]) -> bool:
    return all(any(_is_mention(scope, part, name) for part in ast.walk(node)) for name in names)


def _is_mention(scope: DefinitionScope, node: ast.AST, name: str | CodePlace) -> bool:
    if isinstance(name, CodePlace):
        variable = name.one(scope)
        return isinstance(variable, ast.Name) and isinstance(node, ast.Name) and node.id == variable.id
    return isinstance(node, ast.Name | ast.Attribute) and is_named(scope, node, name)
