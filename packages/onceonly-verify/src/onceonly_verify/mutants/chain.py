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
from onceonly_verify.mutations.operations import drop_element, drop_operand, insert_before, replace
from onceonly_verify.mutations.places import argument, comparison, receiver

CHAINED: tuple[Mutant, ...] = (
    Mutant(
        "one id for all that a message sends",
        (CHAIN_WIDE,),
        (identity("outgoing_id", replace(receiver("to_bytes"), "0")),),
    ),
    Mutant(
        "ids that do not say which message they answer",
        (CHAIN_WIDE,),
        (identity("outgoing_id", drop_element("source.encode"), drop_element("id.encode")),),
    ),
    Mutant(
        "ids that leave out who sent the message they answer",
        (CHAIN_WIDE,),
        (identity("outgoing_id", drop_element("source.encode")),),
    ),
    Mutant(
        "an endpoint takes from another's queue",
        (CHAIN,),
        (transport("receive", drop_operand(comparison("queue"))),),
    ),
    Mutant(
        "a retry copy goes to the endpoint that sent the message",
        (CHAIN_FAILING,),
        (
            delivery(
                "_copy", replace(argument("Send", "to"), "old if item.message.source == 'upstream' else item.message.source")
            ),
        ),
    ),
    Mutant(
        "an ack that settles what other endpoints hold",
        (CHAIN_CRASHING,),
        (
            transport(
                "ack",
                insert_before(
                    "_settled",
                    """
queues = {entry.queue for entry in world.entries if entry.receipt in receipts}
others = {entry.number for entry in world.entries if entry.held_until and entry.queue not in queues}
""",
                ),
                replace("_settled", "old | others"),
            ),
        ),
    ),
)
