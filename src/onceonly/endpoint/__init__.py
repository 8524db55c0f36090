"""What users touch: an endpoint, its handlers and what is injected into them; implements the Handlers port."""

from onceonly.endpoint.context import Context
from onceonly.endpoint.endpoint import Endpoint
from onceonly.endpoint.handlers import EndpointHandlers
from onceonly.endpoint.outgoing import Outgoing
from onceonly.endpoint.transactions import Transaction
from onceonly.formats.bodies import message

__all__ = ["Context", "Endpoint", "EndpointHandlers", "Outgoing", "Transaction", "message"]
