"""Broken scripts of the Redis transport fail the rules that they break, on a running server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly.adapters.redis import scripts, transport
from onceonly.adapters.redis.client import script_hash
from onceonly_conformance.suite import broken
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.redis_subjects import RedisSubject

BROKEN = {
    "a release keeps the count": (
        "RELEASE",
        "string.format('%.0f', raised)",
        "string.format('%.0f', count)",
        ["a_released_delivery_comes_again_at_once_and_is_no_suspect", "releasing_a_suspect_clears_it"],
    ),
    "a release waits for the end of the lease": (
        "RELEASE",
        "try(released, 'RPUSH', released, id)",
        "",
        ["a_released_delivery_comes_again_at_once_and_is_no_suspect", "a_release_gives_back_only_what_it_names"],
    ),
    "a release ends the delivery of another": (
        "RELEASE",
        "if is_held(pending(stream, group, id), me, count) then",
        "if pending(stream, group, id) then",
        ["a_late_release_does_not_take_the_delivery_of_another"],
    ),
    "an ack settles the delivery of another": (
        "ACK",
        "if is_held(pending(stream, group, ARGV[at]), me, ARGV[at + 1]) then",
        "if true then",
        ["a_late_ack_does_not_take_the_delivery_of_another"],
    ),
    "an ack deletes nothing": (
        "ACK",
        "redis.call('XDEL', stream, unpack(ids))",
        "",
        ["depth_counts_what_waits_is_held_and_is_delayed"],
    ),
    "an ack leaves the entry pending": (
        "ACK",
        "redis.call('XACK', stream, group, unpack(ids))\n  redis.call('XDEL', stream, unpack(ids))",
        "",
        ["a_message_arrives_once_when_it_is_acked", "an_ack_settles_only_what_it_names"],
    ),
    "ended leases are revived": (
        "EXTEND",
        "and found[3] < lease",
        "",
        ["extending_too_late_does_nothing"],
    ),
    "leases are not renewed": (
        "EXTEND",
        "redis.call('XCLAIM', stream, group, me, 0, ARGV[at], 'JUSTID')",
        "",
        ["extending_keeps_a_delivery"],
    ),
    "nobody looks for ended leases": (
        "TAKE",
        "if cursor ~= '' then take_lapsed() end",
        "",
        ["a_delivery_whose_lease_ended_comes_again_as_a_suspect"],
    ),
    "ended leases are not marked": (
        "TAKE",
        "add(entry, pending(stream, group, entry[1])[4])",
        "add(entry, 1)",
        ["a_delivery_whose_lease_ended_comes_again_as_a_suspect"],
    ),
    "leases end at once": (
        "TAKE",
        "'XAUTOCLAIM', stream, group, me, lease",
        "'XAUTOCLAIM', stream, group, me, 0",
        ["a_held_delivery_is_not_given_to_another", "receivers_never_share_a_delivery"],
    ),
    "what is due is moved twice": (
        "TAKE",
        "redis.call('ZREM', delayed, member)",
        "redis.call('XADD', stream, '*', unpack(fields)) redis.call('ZREM', delayed, member)",
        ["a_delayed_message_arrives_as_it_was_sent"],
    ),
    "what is due is removed and not moved": (
        "TAKE",
        "return redis.pcall('XADD', stream, 'NOMKSTREAM', '*', ...)",
        "return ''",
        ["a_delayed_message_is_delivered_when_it_is_due", "a_delayed_message_arrives_as_it_was_sent"],
    ),
    "what is delayed is moved a millisecond early": (
        "TAKE",
        "try(delayed, 'ZRANGE', delayed, '-inf', now,",
        "try(delayed, 'ZRANGE', delayed, '-inf', now + 1,",
        ["a_delayed_message_is_not_delivered_before_it_is_due"],
    ),
    "more is taken than was asked for": (
        "TAKE",
        "limit - number, 'STREAMS'",
        "limit + 1, 'STREAMS'",
        ["receive_takes_at_most_the_limit"],
    ),
    "delays are ignored": (
        "SEND",
        "local later = due ~= '' and tonumber(due) > now",
        "local later = false",
        ["a_delayed_message_is_not_delivered_before_it_is_due"],
    ),
    "an event goes to one subscriber": (
        "SEND",
        "else redis.call('XADD', start .. 'stream:' .. name, '*', fields_of(packed, body)) end",
        "else redis.call('XADD', start .. 'stream:' .. name, '*', fields_of(packed, body)) return 1 end",
        ["an_event_goes_to_every_endpoint_that_subscribed"],
    ),
    "unsubscribing does nothing": (
        "DECLARE",
        "redis.call('SREM', start .. 'subscribers:' .. ARGV[at], name)",
        "",
        ["what_an_endpoint_names_as_gone_is_unsubscribed"],
    ),
    "a declaration deletes the group first": (
        "DECLARE",
        "local made = ",
        "redis.pcall('XGROUP', 'DESTROY', stream, group) redis.call('DEL', stream) local made = ",
        ["declaring_again_is_harmless"],
    ),
    "ended leases count as held": ("DEPTH", "lapsed = lapsed + 1", "", ["depth_counts_what_came_back_as_waiting"]),
    "what is due counts as delayed": ("DEPTH", "- due}", "}", ["depth_counts_what_came_back_as_waiting"]),
    "an unknown queue is empty": (
        "DEPTH",
        "then return -1 end",
        "then return {0, 0, 0} end",
        ["the_depth_of_an_unknown_queue_is_a_setup_error"],
    ),
}

BITES = [pytest.param(name, f"test_{rule}", id=f"{name}-{rule}") for name, (*_, found) in BROKEN.items() for rule in found]


class Brittle(TransportSuite):
    """The suite on Redis. It does not wait long for a message that a broken script has lost."""

    patience: ClassVar[float] = 1.0
    quiet: ClassVar[float] = 0.05

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[RedisSubject]:
        """Open a prefix of its own."""
        async with RedisSubject.open() as subject:
            yield subject


@pytest.mark.parametrize(("name", "rule"), BITES)
async def test_a_broken_script_is_caught_by_the_rule_that_it_breaks(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/conformance/test_redis_streams.py` shows that the scripts themselves pass."""
    which, old, new, _ = BROKEN[name]
    script = getattr(scripts, which)
    assert script.count(old) == 1
    changed = script.replace(old, new)
    monkeypatch.setattr(scripts, which, changed)
    monkeypatch.setattr(transport, "_SEND_HASH", script_hash(scripts.SEND))
    assert await broken(Brittle(), rule)
