"""What a transport in front of another one does not do itself, the other does."""

from inspect import getmembers_static
from typing import Any

from onceonly.ports.transport import Transport

__all__ = ["ForwardingTransport"]


class ForwardingTransport:
    """A transport in front of another one. A subclass defines the calls that it changes.

    The optional parts of a transport, such as `ChecksBroker`, are found by `isinstance`. Since Python 3.12 it sees attributes
    of the object and of its class, and nothing that only `__getattr__` returns. So each method of the other transport is an
    attribute here.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport: Any = transport
        for name, _ in getmembers_static(transport, callable):
            if not name.startswith("_") and not hasattr(type(self), name):
                setattr(self, name, getattr(transport, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
