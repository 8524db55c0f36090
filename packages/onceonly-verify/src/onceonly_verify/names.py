"""The names of messages and attempts in the texts that handlers write, send and fail with."""

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from onceonly.model.identity import Identity, fingerprint
from onceonly_verify.programs import Programs
from onceonly_verify.workload import HOPELESS, SOURCE, Workload

BY = " by "
"""Between what a message is and the attempt that sent it."""
BLAMES = "the message is "
"""In the reason of a failure, before the name of the message whose handler failed."""


def effect_text(name: str, index: int, mark: str) -> str:
    """Write the body of what an attempt sends: what it is, and which attempt sent it."""
    return f"{name}.{index}{BY}{mark}"


def reason_blaming(reason: str, text: str) -> str:
    """Write the reason of a failure so that it names the message whose handler failed."""
    return f"{reason}: {BLAMES}{name_of(text)}"


def blamed_in(reason: str) -> str:
    """Return the name of the message whose handler failed; empty for a failure of another kind."""
    return reason.partition(BLAMES)[2]


def name_of(text: str) -> str:
    """Return what a message is, whichever attempt sent it."""
    return text.partition(BY)[0]


@lru_cache(maxsize=10_000)
def fingerprint_of(text: str) -> bytes:
    """Return the fingerprint of the message with this body."""
    return fingerprint(text.encode())


def names_of(workload: Workload, programs: Programs) -> dict[Identity, str]:
    """Return the names of messages whose id alone says too little, for steps that a person reads."""
    made = {(arrival.message().identity, arrival.name) for arrival in workload.arrivals}
    names = {each.message().identity: each.id for each in workload.arrivals if each.instant}
    names |= {identity: f"{identity.id} of {identity.source}" for identity, _ in made if identity.source != SOURCE}
    for endpoint in workload.endpoints:
        sent = {
            (Identity(endpoint, programs.identity.outgoing_id(endpoint, identity, index)), f"{name}.{index}")
            for identity, name in made
            for index in range(workload.effects)
        }
        names |= dict(sorted(sent, reverse=True))  # two under one id, which takes a mutant: the first name
        made = sent if not workload.published or endpoint == workload.endpoints[0] else made
    return names


def identities_of(workload: Workload, programs: Programs) -> dict[str, dict[Identity, str]]:
    """Give, for each endpoint, the names of all messages that may come to it."""
    made = {arrival.message().identity: arrival.name for arrival in workload.arrivals if arrival.flaw in {None, *HOPELESS}}
    found = {}
    for endpoint in workload.endpoints:
        found[endpoint] = made
        if workload.published and endpoint != workload.endpoints[0]:
            continue
        made = {
            Identity(endpoint, programs.identity.outgoing_id(endpoint, identity, index)): f"{name}.{index}"
            for identity, name in made.items()
            for index in range(workload.effects)
        }
    return found


def mark_text(token: tuple[Hashable, int]) -> str:
    """Write an attempt's name as text without spaces."""
    receipt: Any = token[0]
    return f"{receipt.number}.{receipt.times}.{token[1]}"
