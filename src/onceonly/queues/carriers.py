"""A transport that hands messages to carriers, and all others to the endpoint's own transport."""

import logging
from collections.abc import Sequence

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.model.destination import Carrier, read_destination
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.carrier import MessageCarrier
from onceonly.ports.transport import Transport
from onceonly.queues.forwarding import ForwardingTransport
from onceonly.systems.carriers import carrier_names, open_carrier

__all__ = ["CarryingTransport"]

_PREFIX = f"{Carrier.kind}:"
_log = EventLogger(logging.getLogger("onceonly.transport"))
_LOGGED = LoggedKeys()


class CarryingTransport(ForwardingTransport):
    """A transport whose messages to carriers are sent by them. Each is opened when it is needed first."""

    def __init__(self, transport: Transport, endpoint: str) -> None:
        super().__init__(transport)
        self._endpoint = endpoint
        self._open: dict[str, MessageCarrier] = {}

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send these; see the port."""
        carried: dict[str, list[int]] = {}
        for index, send in enumerate(sends):
            if send.to.startswith(_PREFIX):
                found = read_destination(send.to)
                carried.setdefault(found.carrier if isinstance(found, Carrier) else "", []).append(index)
        if not carried:
            answers: tuple[Answer, ...] = await self._transport.send(sends)
            return answers
        placed = dict(await self._send_carried(sends, carried))
        own = [index for index in range(len(sends)) if index not in placed]
        if own:
            placed |= dict(zip(own, await self._transport.send([sends[index] for index in own]), strict=True))
        return tuple(placed[index] for index in range(len(sends)))

    async def close_carriers(self) -> None:
        """Close what was opened."""
        for carrier in self._open.values():
            await carrier.close()
        self._open.clear()

    async def _send_carried(self, sends: Sequence[Send], carried: dict[str, list[int]]) -> list[tuple[int, Answer]]:
        placed: list[tuple[int, Answer]] = []
        for name, indexes in carried.items():
            carrier = self._carrier(name)
            if carrier is None:
                self._log_missing(name)
                placed += [(index, Answer.REFUSED) for index in indexes]
            else:
                placed += zip(indexes, await carrier.send([sends[index] for index in indexes]), strict=True)
        return placed

    def _carrier(self, name: str) -> MessageCarrier | None:
        if name not in self._open and (opened := open_carrier(name)) is not None:
            self._open[name] = opened
        return self._open.get(name)

    def _log_missing(self, name: str) -> None:
        if _LOGGED.add(self._endpoint, name):
            known = ", ".join(carrier_names()) or "none"
            reason = f"this process has no carrier of that name, but {known}: import the module that defines its application"
            _log.warning(
                "carrier missing, messages not sent", extra={"endpoint": self._endpoint, "carrier": name, "reason": reason}
            )
