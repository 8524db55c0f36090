"""Workers in a world: their programs run, and the caller decides what happens next."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly_verify.driver import Call, HandlerChoice
from onceonly_verify.invariants.auditor import Auditor
from onceonly_verify.step_limit import STEP_LIMIT, EndlessStep
from onceonly_verify.workload import End
from onceonly_verify.world import State
from onceonly_verify.world_player import Ends, InitialState, Option, WorldPlayer

CLOSINGS = 20
"""So often a program that ends may try to make a call."""


class ProgramRun(Protocol):
    """A program at work on a batch. `call` is what it waits for; None when it is over, or let `escaped` escape."""

    batch: tuple[Delivery, ...]
    call: Call | None
    escaped: BaseException | None

    async def resume(self, outcome: Any, now: int) -> None:
        """Answer its call at this instant, and wait for the next; the first answer, None, lets it begin."""

    async def kill(self) -> None:
        """End it, as the death of its process does."""

    def marks(self) -> tuple[PortOperation, ...]:
        """Take what it did at once since its last call."""


class SteppedRun:
    """A run stepped by hand: nothing but its coroutine is at work."""

    def __init__(self, opening: InitialState, batch: tuple[Delivery, ...]) -> None:
        self.batch = batch
        self.call: Call | None = None
        self.escaped: BaseException | None = None
        self._driver, self._coroutine = opening.cast.start(batch)

    async def resume(self, outcome: Any, now: int) -> None:
        self._driver.now = now
        try:
            with STEP_LIMIT:
                self.call = self._coroutine.send(outcome)
        except StopIteration:
            self.call = None
        except (Exception, EndlessStep) as error:  # noqa: BLE001 - what a program lets escape is a finding
            self.call, self.escaped = None, error

    async def kill(self) -> None:
        """Close the coroutine. One that makes a call while it ends is closed again: a dead process makes none."""
        for _ in range(CLOSINGS):
            try:
                with STEP_LIMIT:
                    return self._coroutine.close()
            except RuntimeError:
                continue
        raise RuntimeError("a program does not end when its process dies")

    def marks(self) -> tuple[PortOperation, ...]:
        found = tuple(self._driver.marks)
        self._driver.marks.clear()
        return found


class Simulation:
    """A world with workers. `run` begins a program on a batch."""

    def __init__(
        self, opening: InitialState, run: Callable[[InitialState, tuple[Delivery, ...]], ProgramRun] = SteppedRun
    ) -> None:
        self.player = WorldPlayer(opening)
        self.workers: list[ProgramRun | None] = [None] * len(self.player.roles)
        self.parts = self.player.parts
        self.views = opening.views
        self._opening = opening
        self._run = run
        self._auditor = Auditor(self, opening.check.workload, opening.check.patience)

    def escaped(self, state: State) -> BaseException | None:
        """Return what a worker's program let escape, if one did."""
        return next((run.escaped for run in self.workers if run and run.escaped), None)

    def name_of(self, identity: Identity) -> str:
        """Return the name that steps use for a message."""
        return self._opening.names.get(identity, identity.id)

    def call(self, who: int) -> PortOperation | None:
        """Return the call a worker waits for; None when it is idle, or stopped with an error."""
        run = self.workers[who]
        return run.call if run and isinstance(run.call, PortOperation) else None

    def usual(self, name: str) -> End:
        """Return the end of a handler that costs no whim."""
        ends: tuple[End, ...] = self._opening.check.workload.behaviour(name).value
        return ends[0]

    def options(self, who: int) -> Iterator[Option]:
        """List everything that may happen next to one worker (by its place), or to the world (-1); no faults come first."""
        player, call = self.player, self.call(who) if who >= 0 else None
        if who < 0:
            yield from player.landing()
            yield from self.ticking()
            yield from player.expiring()
            yield from player.ending()
        elif call:
            yield from player.applied(who, call)
            yield from player.failing(who, call)
            yield from player.cutting(who, call)
            yield from player.dying(who, call)
        elif self.workers[who] is None:
            yield from self.arrivals(who)
            yield from self.arrivals(who, lost=True)

    def ticking(self) -> list[Option]:
        """Move the clock, where it may move."""
        if not self.player.time:
            return []
        busy = [self.player.bounded_since(who, self.call(who)) for who, run in enumerate(self.workers) if run]
        idle = not busy and not self.player.ledger.pending and not self.player.is_at_rest()
        eager = [who for who, role in enumerate(self.player.roles) if not role.is_patient]
        is_last = idle and not any(next(self.arrivals(who), None) for who in eager)
        return self.player.ticking(busy, is_last=is_last)

    def arrivals(self, who: int, *, lost: bool = False) -> Iterator[Option]:
        """List what may set an idle worker going."""
        for option in self.player.arrivals(who, busy=any(self.workers), lost=lost):
            if option.spends != "sweeps" or self.player.ledger.left.sweeps:
                yield option

    async def take(self, option: Option, choose: Callable[[str], End]) -> Ends:
        """Let it happen; `choose` says how the handler of a message ends. Returns how those that ran did."""
        run = self.workers[option.who] if option.who >= 0 else None
        self.player.happen(option, run.batch if run else ())
        if option.dies and run:
            await self._end_process(option.who, run)
        elif option.begins and option.form.outcome:
            run = self.workers[option.who] = self._run(self._opening, option.form.outcome)
            return await self._run_to_next_call(option, run, None, choose)
        elif option.begins:
            self._leave(ended=False)
        elif run:
            return await self._run_to_next_call(option, run, option.form.outcome, choose)
        return ()

    def violation(self) -> str:
        """Return what is wrong now; empty when nothing is."""
        state = tuple(self.player.numbers)
        return self._auditor.violation(state) or (self._auditor.violation_at_rest(state) if self.is_at_rest() else "")

    def is_at_rest(self) -> bool:
        """Return whether nothing is left to do."""
        return not any(self.workers) and self.player.is_at_rest()

    async def close(self) -> None:
        for who, run in enumerate(self.workers):
            if run:
                self.workers[who] = None
                await run.kill()

    async def _run_to_next_call(self, option: Option, run: ProgramRun, outcome: Any, choose: Callable[[str], End]) -> Ends:
        ends: Ends = ()
        await self._resume(run, outcome)
        while isinstance(run.call, HandlerChoice):
            name = run.call.name
            end = choose(name)
            ends = (*ends, (name, end))
            self.player.ended(name, end)
            if end is End.KILLS:
                await self._end_process(option.who, run)
                return ends
            await self._resume(run, end)
        if run.call is None and run.escaped is None:
            self.workers[option.who] = None
            self._leave(ended=True)
        return ends

    async def _resume(self, run: ProgramRun, outcome: Any) -> None:
        await run.resume(outcome, self.player.now)
        self.player.mark(run.marks())

    async def _end_process(self, who: int, run: ProgramRun) -> None:
        self.workers[who] = None
        await run.kill()
        self.player.roll_back(who, run.batch[0].receipt, run.call)
        self._leave(ended=False)

    def _leave(self, *, ended: bool) -> None:
        held = frozenset(delivery.receipt for run in self.workers if run for delivery in run.batch)
        self.player.leave(held, ended=ended)


def at_once(simulation: Coroutine[Any, Any, Any]) -> Any:
    """Run a simulation of stepped runs, which never waits; returns its result."""
    try:
        simulation.send(None)
    except StopIteration as over:
        return over.value
    simulation.close()
    raise RuntimeError("a simulation of stepped runs waited for something")
