"""Broken versions that a sink cannot tell from good ones: it takes a second endpoint that asks who a message is."""

from onceonly_verify.mutants.known_bad import (
    CHAIN,
    CHAIN_CRASHING,
    CHAIN_FAILING,
    CHAIN_WIDE,
    Mutant,
    delivery,
    identity,
    transport,
)

_PARTS = "    parts = (endpoint.encode(), incoming.source.encode(), incoming.id.encode(), index.to_bytes(4, "

CHAINED: tuple[Mutant, ...] = (
    Mutant(
        "one id for all that a message sends",
        (CHAIN_WIDE,),
        (identity(_PARTS, _PARTS.replace("index.to_bytes(4,", "(0).to_bytes(4,")),),
    ),
    Mutant(
        "ids that do not say which message they answer",
        (CHAIN_WIDE,),
        (identity(_PARTS, _PARTS.replace("incoming.source.encode(), incoming.id.encode(), ", "")),),
    ),
    Mutant(
        "ids that leave out who sent the message they answer",
        (CHAIN_WIDE,),
        (identity(_PARTS, _PARTS.replace("incoming.source.encode(), ", "")),),
    ),
    Mutant(
        "an endpoint takes from another's queue",
        (CHAIN,),
        (transport("free = [e for e in world.entries if e.queue == queue and not", "free = [e for e in world.entries if not"),),
    ),
    Mutant(
        "a retry copy goes to the endpoint that sent the message",
        (CHAIN_FAILING,),
        (
            delivery(
                "        to=ports.endpoint,\n",
                "        to=ports.endpoint if item.message.source == 'upstream' else item.message.source,\n",
            ),
        ),
    ),
    Mutant(
        "an ack that settles what other endpoints hold",
        (CHAIN_CRASHING,),
        (
            transport(
                "    gone = _settled(world, receipts, rules)\n",
                "    queues = {entry.queue for entry in world.entries if entry.receipt in receipts}\n"
                "    others = {entry.number for entry in world.entries if entry.held_until and entry.queue not in queues}\n"
                "    gone = _settled(world, receipts, rules) | others\n",
            ),
        ),
    ),
)
