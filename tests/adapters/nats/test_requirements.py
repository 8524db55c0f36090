"""The settings of streams and consumers: what is allowed is checked, at the start and again while the endpoint runs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onceonly.adapters.nats.requirements import consumer_rules, problems, queue_rules, stream_rules, subscription_rules, unknown
from onceonly.adapters.nats.topology import ONE_REPLICA
from onceonly.model.errors import SetupError
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.adapters.nats.harness import Broker, commands, opened

SUBJECT = "onceonly.queue.shop"
STREAM: dict[str, Any] = {"subjects": [SUBJECT], "retention": "workqueue", "discard": "new", "max_age": 0}
CONSUMER: dict[str, Any] = {"ack_policy": "explicit", "deliver_policy": "all", "max_deliver": -1, "ack_wait": 30}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened() as place:
        yield place


async def test_what_is_declared_is_allowed_and_checked_again(broker: Broker) -> None:
    """A worker checks every 30 seconds."""
    report = await (await broker.transport()).check()
    assert (report.warnings, report.again_after) == ((ONE_REPLICA.format(broker.stream),), 30.0)


async def test_a_limit_that_drops_confirmed_messages_is_refused_until_it_is_corrected(broker: Broker) -> None:
    """A limit for each subject drops the oldest messages, although the stream discards new ones when it is full."""
    transport = await broker.transport()
    await broker.change(max_msgs_per_subject=2)
    assert await transport.send(commands("m1", "m2", "m3")) == (Answer.TAKEN,) * 3
    assert (await transport.depth("shop")).waiting == 2
    with pytest.raises(SetupError, match=r"max_msgs_per_subject is 2\. Set it to -1"):
        await transport.check()
    await broker.change(max_msgs_per_subject=-1)
    await transport.check()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_age": 600_000_000_000}, "max_age is 600000000000. Set it to 0"),
        ({"max_msgs": 5, "discard": "old"}, "discard is old. Set it to new, or max_msgs and max_bytes to -1"),
        ({"no_ack": True}, "no_ack is True. Set it to false"),
        ({"allow_rollup_hdrs": True}, "allow_rollup_hdrs is True. Set it to false"),
    ],
)
@pytest.mark.parametrize("stream", ["queue", "delayed", "subscriptions"])
async def test_a_changed_stream_is_refused(broker: Broker, stream: str, settings: dict[str, object], said: str) -> None:
    """The error names the stream, the setting, its value and what to set it to."""
    name = {"queue": broker.stream, "delayed": broker.names.delayed, "subscriptions": broker.names.subscriptions}[stream]
    link, transport = await broker.link(), await broker.transport()
    found = await link.api(f"STREAM.INFO.{name}")
    assert found is not None
    await link.api(f"STREAM.UPDATE.{name}", found["config"] | settings)
    with pytest.raises(SetupError, match=said) as refused:
        await transport.check()
    assert f"stream {name!r}" in str(refused.value)
    await link.api(f"STREAM.UPDATE.{name}", found["config"])
    await transport.check()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_deliver": 5}, "max_deliver is 5. Set it to -1"),
        ({"ack_wait": 1_000_000_000}, "ack_wait is 1000000000. Set it to 30000000000"),
        ({"headers_only": True}, "headers_only is True. Set it to false"),
        ({"max_deliver": 5, "backoff": [1_000_000_000]}, r"backoff is \[1000000000\]. Set it to nothing"),
    ],
)
async def test_a_changed_consumer_is_refused(broker: Broker, settings: dict[str, object], said: str) -> None:
    """It would give messages up, or bring them without their bodies."""
    link, transport, path = await broker.link(), await broker.transport(), f"{broker.stream}.onceonly"
    found = await link.api(f"CONSUMER.INFO.{path}")
    assert found is not None
    await link.api(f"CONSUMER.DURABLE.CREATE.{path}", {"stream_name": broker.stream, "config": found["config"] | settings})
    with pytest.raises(SetupError, match=said):
        await transport.check()


async def test_a_queue_that_is_missing_is_left_to_receiving(broker: Broker) -> None:
    """Its worker declares it again."""
    await (await broker.link()).api(f"STREAM.DELETE.{broker.stream}")
    await (await broker.transport()).check()
    await (await broker.transport()).declare([Topology(endpoint="shop")])


@pytest.mark.parametrize(
    "changed",
    [
        {"sealed": True},
        {"mirror": {"name": "other"}},
        {"subject_transform": {"src": "a", "dest": "b"}},
        {"persist_mode": "async"},
        {"allow_msg_counter": True},
        {"retention": "interest"},
        {"subjects": ["other"]},
        {"discard": "old", "max_bytes": 5},
        {"max_msgs_per_subject": 1},
        {"max_msgs_per_subject": "1"},
        {"max_age": None},
    ],
)
def test_settings_that_a_server_of_the_tests_does_not_change_are_refused(changed: dict[str, Any]) -> None:
    """Some belong to newer servers."""
    assert list(problems(STREAM, queue_rules(SUBJECT))) == []
    (said,) = problems(STREAM | changed, queue_rules(SUBJECT))
    assert said.startswith(next(iter(changed)))


@pytest.mark.parametrize(
    "changed",
    [
        {"max_msgs": 100, "max_bytes": 1000},
        {"max_msgs_per_subject": 5, "discard_new_per_subject": True},
        {"storage": "memory", "num_replicas": 3, "compression": "s2", "metadata": {"_nats.ver": "2.15"}},
    ],
)
def test_settings_that_keep_messages_are_allowed(changed: dict[str, Any]) -> None:
    """A queue may have limits if it refuses what is over them."""
    assert list(problems(STREAM | changed, queue_rules(SUBJECT))) == []
    assert list(unknown(STREAM | changed, queue_rules(SUBJECT))) == []


@pytest.mark.parametrize(
    "changed", [{"ack_policy": "all"}, {"deliver_policy": "new"}, {"filter_subject": "x"}, {"filter_subjects": ["x"]}]
)
def test_a_consumer_that_passes_messages_over_is_refused(changed: dict[str, Any]) -> None:
    """Such a consumer may have been created by an operator."""
    assert list(problems(CONSUMER | {"filter_subject": SUBJECT}, consumer_rules(SUBJECT, 30))) == []
    (said,) = problems(CONSUMER | changed, consumer_rules(SUBJECT, 30))
    assert said.startswith(next(iter(changed)))


def test_a_setting_of_a_newer_server_is_told_unless_it_is_off() -> None:
    """Nobody knows what it does."""
    config = STREAM | {"drops_messages": "sometimes", "new": False, "other": 0}
    assert list(unknown(config, queue_rules(SUBJECT))) == ["drops_messages is sometimes"]


def test_each_stream_has_its_own_rules() -> None:
    """Of a subscription one message is enough. The delayed messages are deleted by requests."""
    limits = {"subjects": ["s"], "retention": "limits", "discard": "old", "max_msgs_per_subject": 1}
    assert list(problems(limits, subscription_rules("s"))) == []
    assert len(list(problems(limits, stream_rules("s")))) == 1
    assert len(list(problems(limits | {"deny_purge": True}, subscription_rules("s")))) == 1
