"""Known-bad versions of the algorithm and its ports: each must be caught, or the checks prove nothing.

Each is a change of the shipping source. Names are those of the protocols' section 10 where it has one.
"""

from onceonly.verify.mutants.adapters import ADAPTERS
from onceonly.verify.mutants.chain import CHAINED
from onceonly.verify.mutants.kept import ENTITIES
from onceonly.verify.mutants.known_bad import Mutant
from onceonly.verify.mutants.outbox import OUTBOX
from onceonly.verify.mutants.relay import RELAY
from onceonly.verify.mutants.requests import CALLING, EXECUTION
from onceonly.verify.mutants.rings import RINGS
from onceonly.verify.mutants.shell import SHELL
from onceonly.verify.mutants.things import THINGS
from onceonly.verify.mutants.tokens import TOKENS
from onceonly.verify.mutants.transactions import TRANSACTIONS

MUTANTS: tuple[Mutant, ...] = (
    *OUTBOX,
    *SHELL,
    *ADAPTERS,
    *CHAINED,
    *RELAY,
    *ENTITIES,
    *TOKENS,
    *THINGS,
    *TRANSACTIONS,
    *EXECUTION,
    *CALLING,
    *RINGS,
)

__all__ = ["MUTANTS", "Mutant"]
