"""A client's key, or a message's id, in a database transaction that the caller owns."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from onceonly.endpoint.message_builder import MessageBuilder, SendOptions
from onceonly.endpoint.sender import Outgoing
from onceonly.endpoint.transactions import OpenContext, TransactionContext
from onceonly.formats.bodies import BodyError, decode_answer, encode_answer
from onceonly.model.destination import Destination
from onceonly.model.errors import InvalidEffect, TransactionMisused
from onceonly.ports.environment import Clock

if TYPE_CHECKING:  # imports adapters
    from onceonly.assembly import EnlistedKeyTransaction

_KNOWN = "this idempotency key was used before, so nothing can be changed under it: check entry.is_known first"
_OVER = (
    "the transaction, or the savepoint, in which this idempotency key was taken has ended: call enlist(session, key=...) again"
)


class EnlistedKey(Outgoing):
    """A key in one open transaction of one session. Valid until it is committed, rolled back or closed.

    If the key was committed before, `is_known` is true and `answer` is the stored answer. Leave the work out then. Otherwise
    key, answer, messages and the session's own rows are committed together, or not at all.
    """

    def __init__(
        self,
        enlisted: "EnlistedKeyTransaction",
        builder: MessageBuilder,
        clock: Clock,
        *,
        open_context: OpenContext,
        key: str,
    ) -> None:
        super().__init__(enlisted, builder, clock)
        self._attempt = enlisted.attempt
        self._key_transaction = enlisted
        self._open_context = open_context
        self._key = key
        entry = enlisted.entry
        self._is_dispatched = entry is not None and not entry.records and not enlisted.is_own

    @property
    def is_known(self) -> bool:
        """Whether the key was used before: it is committed, or this transaction has taken it already."""
        return self._key_transaction.entry is not None

    @property
    def is_dispatched(self) -> bool:
        """Whether the broker has taken all messages that are committed under the key, as far as this object knows.

        It is read with a known key, and set by `dispatch`. A commit alone leaves the messages to a relay.
        """
        return self._is_dispatched

    @property
    def answer(self) -> Any:
        """The answer: bytes or a JSON value. None until it is set or found under the key.

        Set it to bytes, or to a value that can be written as JSON, before the commit. An answer that is set within a savepoint
        goes with it. Raises TransactionMisused after a rollback, and when a known key's is set. Raises InvalidEffect for a
        value that cannot be encoded.
        """
        enlisted = self._key_transaction
        if enlisted.is_lost:
            raise TransactionMisused(_OVER)
        return decode_answer(enlisted.answer)

    @answer.setter
    def answer(self, answer: object) -> None:
        self._check()
        try:
            self._key_transaction.set_answer(encode_answer(answer))
        except BodyError as error:
            raise InvalidEffect(f"the answer cannot be stored: {error}") from error

    def _hold_records(self) -> None:
        """Insert the records with the answer; see `EnlistedKeyTransaction`."""
        self._key_transaction.hold_records()

    async def dispatch(self) -> bool:
        """Send now what is committed under the key, by whichever attempt. Returns whether the broker has taken all of it.

        Call it after the session's transaction has ended, where no relay may be running. Acknowledge a message only after it.
        Synchronous code calls `asyncio.run(entry.dispatch())`. A failure is logged, and the messages are left to a relay or to
        the next call.

        Raises TransactionMisused before the transaction's end, and if nothing is committed under the key. Raises CommitFailed
        or OutcomeUnknown if the store does not answer, SetupError.
        """
        if not self._key_transaction.is_over:
            raise TransactionMisused("dispatch() sends what is committed: call it after the session's transaction has ended")
        opened = self._open_context()
        entered: AbstractAsyncContextManager[TransactionContext]
        entered = nullcontext(opened) if isinstance(opened, TransactionContext) else opened
        async with entered as context:
            entry = await context.ports.transactions.entry(self._key)
            if entry is None:
                raise TransactionMisused("nothing is committed under this idempotency key, so there is nothing to dispatch")
            self._is_dispatched = await context.dispatch(entry.records)
        return self._is_dispatched

    def _capture(self, body: object, to: str | Destination, options: SendOptions) -> None:
        self._check()
        try:
            super()._capture(body, to, options)
        except OverflowError as error:
            raise InvalidEffect(str(error)) from error

    def _check(self) -> None:
        if self.is_known:
            raise TransactionMisused(_KNOWN)
        if self._key_transaction.is_over:
            raise TransactionMisused(_OVER)
