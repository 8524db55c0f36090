"""Changing functions and constants in place, in a process that has imported them: whoever refers to them uses the new ones."""

import ast
import builtins
import gc
import importlib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from types import CodeType, FunctionType

from onceonly_verify.mutations import mutated
from tests.mutants.generator import Mutant, codes_of, function_codes, path_of, source_of

HIT = "__hit__"
Line = tuple[str, int]
PLAIN = (bool, int, float, str, bytes, type(None))
"""Values that are one object wherever they are written, so a name has to say which constant is meant."""


def swap(module: str, codes: Mapping[str, CodeType]) -> int:
    """Return the functions of a module new code, by their qualified names. Return how many there were."""
    path, count = path_of(module), 0
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == path:
            new = codes.get(each.__code__.co_qualname)
            if new is not None:
                each.__code__ = new
                count += 1
    return count


def mutate(mutant: Mutant) -> None:
    """Make this process a mutant. Raises LookupError if nothing in it uses what is changed."""
    done = swap(mutant.module, codes_of(mutant)) if mutant.change.function else _swap_constants(mutant)
    if not done:
        raise LookupError(f"nothing in this process uses what is changed: {mutant.name}")


def lines_using_constant(mutant: Mutant, modules: Iterable[str]) -> frozenset[Line]:
    """Return the statements in functions that use a constant of its module, or another constant that is made from it."""
    names, _ = _changed_constants(mutant)
    return frozenset(line for module in modules for name in names for line in _uses(module).get(name, ()))


def record_lines(modules: list[str]) -> set[Line]:
    """Record from now on which statements of the modules' functions run: (module, line). The caller empties the set."""
    lines: set[Line] = set()
    setattr(builtins, HIT, lambda module, line: lines.add((module, line)))
    for module in modules:
        tree = _Recording(module).visit(ast.parse(source_of(module)))
        codes = function_codes(compile(ast.fix_missing_locations(tree), path_of(module), "exec"))
        swap(module, {name: code for name, code in codes.items() if "<locals>" not in name})
    return lines


class _Recording(ast.NodeTransformer):
    """Puts a call before each statement that is inside of a function."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._depth = 0

    def visit(self, node: ast.AST) -> ast.AST:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._depth += is_function
        self.generic_visit(node)
        if self._depth:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, [each for old in block for each in (self._hit(old), old)])
        self._depth -= is_function
        return node

    def _hit(self, statement: ast.stmt) -> ast.stmt:
        call = ast.Call(
            func=ast.Name(id=HIT, ctx=ast.Load()),
            args=[ast.Constant(value=self._module), ast.Constant(value=statement.lineno)],
            keywords=[],
        )
        return ast.copy_location(ast.Expr(value=call), statement)


def _swap_constants(mutant: Mutant) -> int:
    """Make the changed constants anew, and those made from them, and put them where the old ones are."""
    names, statements = _changed_constants(mutant)
    own = vars(importlib.import_module(mutant.module))
    made = dict(own)
    code = compile(ast.Module(statements, []), path_of(mutant.module), "exec")
    exec(code, made)  # noqa: S102 - the mutant's own code
    old = {name: own[name] for name in names}
    count = 0
    for module in [each for name, each in sys.modules.items() if name.startswith("onceonly")]:
        for name, value in list(vars(module).items()):
            for changed, before in old.items():
                if value is before and (name == changed or not isinstance(before, PLAIN)):
                    setattr(module, name, made[changed])
                    count += 1
    _swap_defaults(mutant.module, frozenset(names), made)
    return count


def _swap_defaults(module: str, names: frozenset[str], made: Mapping[str, object]) -> None:
    """Evaluate defaults of parameters again that use the constants."""
    defaults = {}
    for path, node in _functions(ast.parse(source_of(module)).body):
        every = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
        if names & {each.id for value in every for each in ast.walk(value) if isinstance(each, ast.Name)}:
            defaults[path] = node.args
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == path_of(module):
            found = defaults.get(each.__qualname__)
            if found is not None:
                each.__defaults__ = tuple(_value(value, made) for value in found.defaults) or None
                named = zip(found.kwonlyargs, found.kw_defaults, strict=True)
                each.__kwdefaults__ = {arg.arg: _value(value, made) for arg, value in named if value is not None}


def _value(node: ast.expr, names: Mapping[str, object]) -> object:
    return eval(compile(ast.Expression(node), "<default>", "eval"), dict(names))  # noqa: S307 - a default of the module's own


def _functions(body: list[ast.stmt], above: str = "") -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((above + node.name, node))
        elif isinstance(node, ast.ClassDef):
            found += _functions(node.body, f"{above}{node.name}.")
    return found


def _changed_constants(mutant: Mutant) -> tuple[list[str], list[ast.stmt]]:
    """Return the names of a changed constant and of those made from it, and the statements that make them."""
    before = [ast.dump(each) for each in ast.parse(source_of(mutant.module)).body]
    names: list[str] = []
    statements: list[ast.stmt] = []
    for old, node in zip(before, mutated(source_of(mutant.module), [mutant.change]).body, strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        used = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
        if ast.dump(node) != old or used & {*names}:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            statements.append(node)
    return names, statements


@cache
def _uses(module: str) -> Mapping[str, frozenset[Line]]:
    """Return the statements of a module's functions by the names that they use. Defaults count as the first statement."""
    found: dict[str, set[Line]] = {}
    for _, function in _functions(ast.parse(source_of(module)).body):
        for statement in (node for node in ast.walk(function) if isinstance(node, ast.stmt)):
            line = function.body[-1].lineno if statement is function else statement.lineno
            own = [each for each in ast.iter_child_nodes(statement) if not isinstance(each, ast.stmt)]
            for node in (inner for each in own for inner in ast.walk(each)):
                if isinstance(node, ast.Name):
                    found.setdefault(node.id, set()).add((module, line))
    return {name: frozenset(lines) for name, lines in found.items()}
