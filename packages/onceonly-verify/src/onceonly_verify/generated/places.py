"""Where a generated mutant changes a function: a node by its number, for as long as the source stays as it is."""

import ast

from onceonly_verify.mutations.places import CodePlace
from onceonly_verify.mutations.scope import DefinitionScope, DoesNotApply


class NodePlace(CodePlace, frozen=True, kw_only=True):
    """A node by its number in the walk of its definition. Mutants are generated anew from each source, so it always fits."""

    number: int
    text: str

    @property
    def words(self) -> str:
        """Return the words that the generator found for it."""
        return self.text

    def find(self, scope: DefinitionScope) -> list[ast.AST]:
        """Find its node. Raises DoesNotApply."""
        nodes = list(scope.nodes())
        if self.number >= len(nodes):
            raise DoesNotApply(f"{self.text} is number {self.number} of {len(nodes)} nodes: generate the mutant again")
        return [nodes[self.number]]
