"""What an endpoint offers outside of its handlers: transactions, on the ports that are open in this process or on their own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import Struct

from onceonly.algorithms.transaction import Ways
from onceonly.assembly.transactions import Registered, dispatch_within, outside, required, session_of
from onceonly.config.endpoint import Settings
from onceonly.endpoint.envelopes import Envelopes
from onceonly.endpoint.registration import RegisteredHandler
from onceonly.endpoint.transactions import Means, Transaction, asked
from onceonly.model.record import Record
from onceonly.ports.bundle import Ports
from onceonly.runtime.environment import LIVE, Surroundings
from onceonly.runtime.processes.board import Row
from onceonly.runtime.processes.doorbell import Doorbell

MAX_BODY = 256 * 1024
"""Bytes of a body where the transport's own limit is not known: what the smallest of the usual brokers take."""
_Dispatch = Callable[[Sequence[Record]], Awaitable[None]]


class Running(Struct, eq=False):
    """What holds while the endpoint is open in this process, in one event loop; `means` once a transaction has asked."""

    settings: Settings
    max_body: int
    surroundings: Surroundings
    ports: Ports | None = None
    loop: asyncio.AbstractEventLoop | None = None
    means: Means | None = None
    board: Row | None = None


class Transacting:
    """The part of an endpoint that opens transactions."""

    settings: Settings
    _doorbell: Doorbell
    _handlers: list[RegisteredHandler]
    _running: list[Running]

    def transaction(
        self,
        *,
        idempotency_key: str | None = None,
        request: object = None,
        scope: str | None = None,
        max_commit: timedelta | None = None,
        wait: float | None = None,
    ) -> Transaction:
        """Open a transaction outside of any handler, such as in a web request: `async with shop.transaction() as tx:`.

        The block's work with `tx.sql` and what it sends with `tx.send` and `tx.publish` are committed together at its end, or
        not at all. What was sent is dispatched at once, by this process, and if that dies by any where the endpoint runs.

        With a client's `idempotency_key` (1 to 255 bytes) the first committed answer, `tx.answer`, is kept and given to every
        retry, also after a commit of which nobody knows whether it happened: `if tx.is_known: return tx.answer` comes first in
        the block. `request` is what was asked, bytes or something that can be written as JSON; the same key with another
        request raises KeyReused. A second attempt waits for one that is under way, as long as for any lock, or for `wait`
        seconds; then it raises Conflict.

        `scope` names the space of the key, such as a tenant: the same key in another scope, or without one, is another key.

        The commit happens within `max_commit` of the beginning, or not at all: that raises Failed. It is the endpoint's unless
        given, an hour at most, and less than the retention. Opened in a process that has not opened the endpoint it makes a
        connection of its own; enter `shop.running()` or `shop.opened()` around many. Raises InvalidKey, TransactionMisused;
        `Transaction` says what its block raises.
        """
        settings = self.settings
        limit = settings.max_commit if max_commit is None else max_commit
        wanted = asked(idempotency_key, request, limit, scope=scope, wait=wait, retention=settings.retention)
        return Transaction(wanted, self._means)

    async def transact(
        self,
        function: Callable[[Transaction], Awaitable[Any]],
        *,
        idempotency_key: str | None = None,
        request: object = None,
        scope: str | None = None,
        max_commit: timedelta | None = None,
        wait: float | None = None,
    ) -> Any:
        """Run `function(tx)` in a transaction, and give its answer; with a key once, and every retry gets that answer.

        The answer is what it returns, else `tx.answer`: bytes, or what JSON has. Otherwise as `transaction`. Raises what the
        function raises, KeyReused, and, with nothing done, Conflict (try again), CommitRefused, Failed; Unknown when only a
        retry with the same key can tell.
        """
        opened = self.transaction(
            idempotency_key=idempotency_key, request=request, scope=scope, max_commit=max_commit, wait=wait
        )
        return await opened.run(function)

    @contextmanager
    def lent(self, ports: Ports, *, settings: Settings | None = None, surroundings: Surroundings = LIVE) -> Iterator[None]:
        """Have transactions of this event loop use these ports, which somebody else has opened.

        Without `settings` they are those under which the endpoint is open already.
        """
        chosen = settings or (self._running[-1].settings if self._running else self.settings)
        max_body = ports.transport.traits.max_body
        running = Running(chosen, max_body, surroundings, ports, asyncio.get_running_loop())
        self._running.append(running)
        try:
            yield
        finally:
            self._running.remove(running)

    def lent_ports(self) -> Ports | None:
        """Give the ports that are open in this event loop; None when the endpoint is not open here."""
        running = self._lent_here()
        return None if running is None else running.ports

    def board_here(self) -> Row | None:
        """Give the row of this process on the board; None where no supervisor watches it."""
        running = self._lent_here()
        return None if running is None else running.board

    def _use_board(self, ports: Ports, board: Row | None) -> None:
        """Have what runs on these ports marked on the board."""
        for running in self._running:
            if running.ports is ports:
                running.board = board

    def _lent_here(self) -> Running | None:
        loop = asyncio.get_running_loop()
        lent = (running for running in reversed(self._running) if running.ports is not None and running.loop is loop)
        return next(lent, None)

    def surroundings_here(self) -> Surroundings:
        """Give time and chance, as the endpoint was opened with them."""
        return self._running[-1].surroundings if self._running else LIVE

    def _means(self) -> Means | AbstractAsyncContextManager[Means]:
        """Give what transactions work with: the ports that are open in this event loop, else some of their own."""
        running = self._lent_here()
        if running is None or running.ports is None:
            return self._own_means()
        running.means = running.means or self._lent_means(running, running.ports)
        return running.means

    def _lent_means(self, running: Running, ports: Ports) -> Means:
        transactions = required(ports.transactions, running.settings)
        ways = Ways(transactions, ports.admission, ports.controls, ports.transport)
        return self._means_of(running, ways, partial(dispatch_within, ports=ports, settings=running.settings))

    @asynccontextmanager
    async def _own_means(self) -> AsyncIterator[Means]:
        chosen = self._running[-1] if self._running else Running(self.settings, MAX_BODY, LIVE)  # of another event loop
        has = Registered(handlers=bool(self._handlers), entities=any(each.entity is not None for each in self._handlers))
        async with outside(chosen.settings, has, surroundings=chosen.surroundings) as opened:
            yield self._means_of(chosen, opened.ways, opened.dispatch)

    def _means_of(self, running: Running, ways: Ways, directly: _Dispatch) -> Means:
        """Where control messages look after a transaction no relay finds its record: it is sent by this very task."""
        dispatch = directly if ways.controls else partial(self._dispatch, directly)
        longest = running.settings.control.max_commit // timedelta(milliseconds=1) if ways.controls else 0
        kind = session_of(running.settings.places.store)
        envelopes = Envelopes(self.settings.name, max_body=running.max_body)
        return Means(self.settings.name, ways, dispatch, envelopes, running.surroundings, kind, longest)

    async def _dispatch(self, directly: _Dispatch, records: Sequence[Record]) -> None:
        """Leave it to the relay of this process, if there is one, or will be: it waits for nobody, and tries again."""
        if self._doorbell.is_heard or self._doorbell.is_expected:
            self._doorbell.ring(records)
        else:
            await directly(records)
