"""The ports of one endpoint, together: the one argument every algorithm takes."""

from typing import NamedTuple

from onceonly.ports.admission import Admission
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.effects import Effects
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Store
from onceonly.ports.transport import Transport
from onceonly.ports.upkeep import NOTHING, Upkeep


class Ports(NamedTuple):
    """Everything an endpoint's algorithm may talk to."""

    endpoint: str
    store: Store
    handlers: Handlers
    admission: Admission
    effects: Effects
    transport: Transport
    dead_letters: DeadLetters
    upkeep: Upkeep = NOTHING
