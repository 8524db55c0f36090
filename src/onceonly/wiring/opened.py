"""What opening a store gives, and what opening a way to deduplicate gives."""

from typing import NamedTuple

from onceonly.ports.admission import Admission
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.effects import Register
from onceonly.ports.store import Store
from onceonly.ports.token_store import TokenStore
from onceonly.ports.upkeep import Counter, Expires


class OpenedStore(NamedTuple):
    """A store, the dead letters beside it, and the register of things that its commits take rows away from, if it has one."""

    store: Store
    dead_letters: DeadLetters
    register: Register | None = None


class OpenedAdmission(NamedTuple):
    """What decides beyond the store's claims; tokens elsewhere, which are swept; what counts those without one; old marks."""

    admission: Admission
    tokens: TokenStore | None = None
    drops: Counter | None = None
    marks: Expires | None = None
