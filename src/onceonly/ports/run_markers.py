"""Run markers: which handlers were running when their process ended."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from onceonly.model.identity import Identity


class StartResult(Struct, frozen=True, kw_only=True):
    """The answer to `begin`. Both fields at their defaults mean that the run has begun. At most one of them is set.

    `died` is the attempt count of an earlier run whose process ended during it. `wait` means that another run of the same
    message may still be in progress: try again after this number of seconds.
    """

    died: int | None = None
    wait: float = 0.0


BEGUN = StartResult()
FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.25, 5.0
"""The shortest and the longest wait for another run, in seconds."""


def waiting(left: float, lasts: float) -> StartResult:
    """Return how long to wait for a run that counts as dead after `lasts` seconds, of which this number is left.

    Most runs end soon. So each wait is as long as the run has taken so far, within the limits above: the waits of a copy that
    finds the same run again double.
    """
    return StartResult(wait=min(left, max(FIRST_WAIT_SECONDS, min(lasts - left, MOST_WAIT_SECONDS))))


class DeadRuns(Struct, frozen=True, kw_only=True):
    """The answer to `find_dead`: the attempt counts with which those runs began whose process died.

    `explained`: the supervisor of this host saw its recent deaths, and each had one handler running at most. So other messages
    that the dead processes held are innocent, as far as this host can determine. A message may have been held by another host.
    """

    counted: Mapping[Identity, int] = {}
    explained: bool = False


NO_DEATHS = DeadRuns()


class RunMarkers(Protocol):
    """Evidence that a process ended while a message's handler was running. Without evidence, no death is counted.

    A run is identified by its message and by the message's attempt count when it began. Evidence of a run that began with count
    n raises the count to n + 1, however often it is found. Evidence is removed when it is returned.
    """

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        """Return which runs the supervisor of this process saw die, and whether that explains why messages came again."""

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        """Record durably that a run begins that has its process to itself. Raises ConflictError, CommitFailed, OutcomeUnknown.

        Returns what is known of an earlier run instead when that run died with at least `attempts`, or may still be running.
        After an error too, call `finish` before the delivery is released: the record may have been
        written.
        """

    async def finish(self, identity: Identity) -> None:
        """Remove what `begin` recorded, when the run ended in any way but the death of its process.

        Adapters raise CommitFailed, OutcomeUnknown. The runtime repeats the call until it succeeds, so algorithms see no
        failure.
        """

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the record of a run that began with at most `attempts`, when its death was counted by other evidence.

        Otherwise the record would be found after the message was given up and sent again from zero. Raises CommitFailed,
        OutcomeUnknown.
        """


class NoRunMarkers:
    """Run markers where nothing is recorded, so no death of a process is ever counted."""

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        """Return nothing."""
        return NO_DEATHS

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        """Record nothing."""
        return BEGUN

    async def finish(self, identity: Identity) -> None:
        """Remove nothing."""

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove nothing."""
