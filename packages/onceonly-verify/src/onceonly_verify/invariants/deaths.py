"""What the shared counters and runs alone promise, by what truly happened: which process died, and what ran in it."""

from collections.abc import Iterator, Mapping
from typing import Any

from onceonly.model.identity import Identity, claim_key
from onceonly_verify.board import BOARD, START, BoardWorld
from onceonly_verify.naming import name_of
from onceonly_verify.workload import Workload


def wrongly_suspected(workload: Workload, board: Any, entry: Any, identity: Identity) -> Iterator[str]:
    """Look at a copy that must run alone, or that was only held: the deaths so far have to be a reason for it."""
    if not isinstance(board, BoardWorld):
        return
    headers, name = dict(entry.headers), name_of(entry.body.decode())
    if board.now == START:
        if "ce-onceonlyheld" in headers:
            yield f"apart: {name!r} counts as held by a dead process, and no death was seen"
        return
    own = dict(board.deaths).get(claim_key(entry.queue, identity), 0)
    was_alone = any(each.alone for each in workload.arrivals if each.name == name)
    if "ce-onceonlyalone" in headers and not (own or board.unclear or was_alone):
        yield f"apart: {name!r} has to run alone, although every death so far is explained, and none was its own"


def left_marked(worlds: Mapping[str, Any]) -> Iterator[str]:
    """Look, at rest, for what marks a handler that does not run any more."""
    board = worlds.get(BOARD.name)
    if board and (board.rows or board.alone):
        yield "leak: a handler is marked as running, or a process is taken, and no handler runs"
