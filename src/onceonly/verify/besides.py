"""What must hold of what is kept beside the stores: tokens, keys of a dedup store, things and their register rows."""

from collections.abc import Iterator, Mapping
from typing import Any

from onceonly.model.token import Token
from onceonly.stores.document_register import LISTED
from onceonly.stores.memory import StoreWorld
from onceonly.verify.keeping import THINGS, TOKENS
from onceonly.verify.workload import WITH_TOKENS, Keeping, Workload, effect_text, name_of
from onceonly.verify.world import BrokerPart

Worlds = Mapping[str, Any]
"""Parts of a world by their places' names."""


def missing_things(workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld]) -> Iterator[str]:
    """Look, in every state, for what a committed attempt made and somebody unmade."""
    if workload.things:
        there = {thing.data.decode() for thing in worlds[THINGS].things}
        for text in sorted(_published(workload, stores) - there):
            yield f"unmade: {text!r} is gone, and the attempt that made it was committed"


def dead_tokens(workload: Workload, worlds: Worlds, part: BrokerPart) -> Iterator[str]:
    """Look, in every state, for messages that came to the sink with a token that is not live: it would drop them."""
    if workload.keeping in WITH_TOKENS:
        live = _live(workload, worlds)
        for id_ in sorted(part.tokens):
            if Token(id_, workload.to) not in live:
                yield f"dead token: a message was sent with token {id_!r}, which is not live: its receiver drops it"


def left_over(
    workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld], part: BrokerPart, *, overtaken: bool
) -> Iterator[str]:
    """Look, at rest, for what nobody will ever ask for or remove. What a sweeper removes does not rest where there is one.

    A sweeper that overtakes an attempt may remove its row before it makes things: then they are left when its process dies.
    """
    if workload.keeping in WITH_TOKENS:
        carried = {Token(id_, workload.to) for id_ in part.tokens}
        for token in sorted(_live(workload, worlds) - carried):
            yield f"leak: token {token.id!r} of {token.endpoint} is live, and its message is gone"
    if workload.things and not overtaken:
        listed = _listed(worlds)
        published = _published(workload, stores)
        for thing in sorted(worlds[THINGS].things, key=lambda thing: thing.name):
            if thing.data.decode() not in published and thing.name.partition("/")[0] not in listed:
                yield f"leak: {thing.name!r} is there, its attempt was never committed, and no row leads to it"


def _live(workload: Workload, worlds: Worlds) -> frozenset[Token]:
    database = next(iter(worlds.values()))
    live: frozenset[Token] = worlds[TOKENS].live if workload.keeping is Keeping.TOKENS else database.tokens
    return live


def _published(workload: Workload, stores: Mapping[str, StoreWorld]) -> set[str]:
    """Name what committed attempts made."""
    rows = stores[workload.endpoints[0]].notes
    return {effect_text(name_of(text), index, mark) for text, mark in rows for index in range(workload.things)}


def _listed(worlds: Worlds) -> set[str]:
    """Give the attempts that a sweeper finds."""
    written = [each for world in worlds.values() for each in getattr(world, "written", ()) if each.body is not None]
    return {each.key.rpartition("/")[2] for each in written if each.key.startswith(LISTED)}
