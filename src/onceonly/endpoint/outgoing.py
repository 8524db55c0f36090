"""Outgoing: sends messages inside a database transaction that the caller owns. They are committed with it, or never were."""

from uuid import uuid4

from onceonly.assembly import EnlistedTransaction
from onceonly.endpoint.message_builder import MessageBuilder, Origin, SendOptions
from onceonly.endpoint.sending import SendingOutside
from onceonly.model.errors import InvalidEffect
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.ports.environment import Clock


class Outgoing(SendingOutside):
    """Sends messages in one open transaction of one session. Valid until it is committed, rolled back or closed."""

    def __init__(self, enlisted: EnlistedTransaction, builder: MessageBuilder, clock: Clock) -> None:
        self._endpoint = builder.endpoint
        self._enlisted = enlisted
        self._envelopes = builder
        self._clock = clock
        self._attempt = uuid4().hex
        self._written = 0

    def _capture(self, body: object, wish: SendOptions) -> None:
        """Write one record for one message, so that a savepoint takes back exactly what was published within it."""
        if self._enlisted.is_over:
            raise InvalidEffect("the transaction of this session has ended: call enlist(session) again in the next transaction")
        # an id of this record alone: that of a message would meet the claim which its own receiver makes
        attempt = Identity(self._endpoint, f"{self._attempt}.{self._written}")
        now = self._clock.now()
        cause = (("replyto", self._endpoint if wish.to else ""),)
        send = self._envelopes.seal(body, wish, Origin(attempt, 0), now=now, cause=cause)
        self._enlisted.write(Record(attempt, (send,)), now)
        self._written += 1
