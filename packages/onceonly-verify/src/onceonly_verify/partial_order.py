"""Which calls go first: they meet nobody, so orders in which others move before them lead to the same states.

A call may go first when, whatever the others do meanwhile, each thing it can come to stays possible and leaves the same
behind (a fault that is left for it after the others' is left before them as well); when what it comes to if nothing fails
takes nothing wrong out of sight; and when nobody else can settle what its worker holds. Then a search that makes it before
anything else misses no state at rest, no stuck state and no violation: every history that ends contains the call, and moving
it to the front changes the order only. A worker makes finitely many calls before it is idle, so nobody is put off for ever.

What was sent to another endpoint is looked at while it waits in that endpoint's queue, and an `ack` takes it out of there. That
hides nothing either: a sender learns nothing from its receiver, so all that it ever sends can wait there before anybody has
received the first of it, and idle workers never go first. Rows only come, so what is no ghost once never becomes one.

The rules look at the store of the call's own endpoint, the broker and the ledger, never at what a program will do next; `begin`
with something new in it, a commit that counts, a `forget` of what is there and whatever reads more than claims have no rule,
because other workers make the difference, or see it.
"""

from collections.abc import Iterable
from typing import Any

from onceonly.adapters.memory.world import PortOperation, Raises
from onceonly.documents.register import LISTED
from onceonly_verify.faults import do
from onceonly_verify.world import Ledger


def is_first(call: PortOperation, part: Any, ledger: Ledger, receipts: frozenset[Any]) -> bool:
    """Return whether this call, on this part of the world, meets nobody; its worker has these receipts, and no rivals.

    Where its process or its host's time may end, so may not its leases before: less is lost with the one than with the other.
    """
    if (ledger.left.crashes or ledger.left.cuts) and ledger.left.expiries:
        return False
    late = (operation.arguments[0] for _, operation in ledger.pending if operation.point in {"ack", "release"})
    if any(are_rivals(receipts, others) for others in late):
        return False
    rule = _RULES.get(call.point)
    return bool(rule and rule(call, part, ledger))


def are_rivals(mine: Iterable[Any], theirs: Iterable[Any]) -> bool:
    """Return whether two have deliveries of one copy: what one settles late, the other holds."""
    return not {receipt.number for receipt in mine}.isdisjoint(receipt.number for receipt in theirs)


def _settles_alone(call: PortOperation, broker: Any, ledger: Ledger) -> bool:
    """What is gone stays gone. What is there it must hold, under a lease that cannot end early."""
    receipts = set(call.arguments[0])
    numbers = {receipt.number for receipt in receipts}
    there = [entry for entry in broker.entries if entry.number in numbers]
    if there and ledger.left.expiries:
        return False
    return all(entry.held_until and entry.receipt in receipts for entry in there)


def _sends(_call: PortOperation, _broker: Any, _ledger: Ledger) -> bool:
    """One more message, in whichever queue, takes no choice from anybody, and numbers of copies are only names."""
    return True


def _begins_what_is_over(call: PortOperation, store: Any, _ledger: Ledger) -> bool:
    """The answer is final, and the unit claims nothing that others wait for."""
    return _are_over([message.identity for message in call.arguments[0]], store)


def _forgets_what_is_over(call: PortOperation, store: Any, _ledger: Ledger) -> bool:
    """There is nothing to forget, and there will not be."""
    return _are_over(call.arguments[0], store)


def _is_refused(call: PortOperation, store: Any, ledger: Ledger) -> bool:
    """A claim that another unit committed stays, and so does what is wrong with this one: only the unit itself ends.

    Where the database may end the unit before, the commit would have another answer.
    """
    return not ledger.left.rollbacks and isinstance(do(call, store)[1], Raises)


def _is_stale(call: PortOperation, documents: Any, ledger: Ledger) -> bool:
    """A write that expects another version than there is expects it for good: versions never repeat.

    A new entry in the list of register rows has a name that nobody else knows; only a sweeper could come across it.
    """
    now = {each.key: each.version for each in documents.written}
    changes = call.arguments[0]
    if all(change.expected and now.get(change.key, "") != change.expected for change in changes):
        return True
    return not ledger.overtaken and all(change.key.startswith(LISTED) and change.key not in now for change in changes)


def _prepares_alone(call: PortOperation, tokens: Any, ledger: Ledger) -> bool:
    """Ids that are fresh are known to nobody else; only a sweeper could come across their tokens."""
    mine = set(call.arguments[0])
    return not ledger.overtaken and mine.isdisjoint(tokens.live) and mine.isdisjoint(each.token for each in tokens.prepared)


def _is_remembered(call: PortOperation, dedup: Any, _ledger: Ledger) -> bool:
    """A key that was added stays."""
    return bool(dedup.keys.issuperset(call.arguments[0]))


def _is_all(_call: PortOperation, _rings: Any, _ledger: Ledger) -> bool:
    """It is the only call of its run, at any moment: what others do before it they do before the run as well."""
    return True


def _are_over(identities: Iterable[Any], store: Any) -> bool:
    """Return whether all are claimed and have nothing pending: claims stay, and a record comes only with its claim.

    Or with a transaction of somebody's own, under an id that nobody claims.
    """
    claims = getattr(store, "claims", ())  # a store whose tokens say what is done has none
    over = {identity for identity, _ in claims} - {stored.record.identity for stored in store.records}
    return over.issuperset(identities)


_RULES = {
    "ack": _settles_alone,
    "release": _settles_alone,
    "send": _sends,
    "begin": _begins_what_is_over,
    "forget": _forgets_what_is_over,
    "commit": _is_refused,
    "save": _is_stale,
    "token-prepare": _prepares_alone,
    "dedup-contains": _is_remembered,
    "dedup-add": _is_remembered,
    "ring-rotate": _is_all,
    "ring-change": _is_all,
    "ring-tick": _is_all,
}
