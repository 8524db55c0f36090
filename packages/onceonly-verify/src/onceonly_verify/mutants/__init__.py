"""Known-bad versions of the algorithm and its ports: each must be caught, or the checks prove nothing.

Each is a change of the shipping source. Names are those of the protocols' section 10 where it has one.
"""

from onceonly_verify.mutants.adapters import ADAPTERS
from onceonly_verify.mutants.application import APPLICATION
from onceonly_verify.mutants.artifacts import ARTIFACTS
from onceonly_verify.mutants.batches import BATCH_HANDLERS, BATCHES
from onceonly_verify.mutants.changed_rings import CHANGED_RINGS
from onceonly_verify.mutants.deaths import DEATHS, HOPELESS
from onceonly_verify.mutants.drivers import DRIVERS
from onceonly_verify.mutants.frozen import FROZEN
from onceonly_verify.mutants.hosted import HOSTED, OWN_TRANSACTIONS
from onceonly_verify.mutants.known_bad import Mutant, named
from onceonly_verify.mutants.outbox import CHAINED, OUTBOX
from onceonly_verify.mutants.relay import RELAY
from onceonly_verify.mutants.requests import CALLING, EXECUTION, EXECUTIONS
from onceonly_verify.mutants.rings import RINGS
from onceonly_verify.mutants.shell import SHELL
from onceonly_verify.mutants.stored_elsewhere import ENTITIES
from onceonly_verify.mutants.third_party import THIRD_PARTY
from onceonly_verify.mutants.timed import TIMED
from onceonly_verify.mutants.tokens import IN_DATABASE, SHARED_TOKENS, TOKENS
from onceonly_verify.mutants.transactions import CLIENTS, SEARCHED, TRANSACTIONS

MUTANTS = named(
    OUTBOX,
    SHELL,
    ADAPTERS,
    CHAINED,
    BATCHES,
    BATCH_HANDLERS,
    HOPELESS,
    RELAY,
    ENTITIES,
    APPLICATION,
    TOKENS,
    SHARED_TOKENS,
    IN_DATABASE,
    ARTIFACTS,
    TRANSACTIONS,
    CLIENTS,
    OWN_TRANSACTIONS,
    SEARCHED,
    DRIVERS,
    HOSTED,
    FROZEN,
    EXECUTION,
    EXECUTIONS,
    CALLING,
    THIRD_PARTY,
    RINGS,
    CHANGED_RINGS,
    TIMED,
    DEATHS,
)

__all__ = ["MUTANTS", "Mutant"]
