"""The objects in JetStream: a stream with one consumer for each endpoint, and two streams for all.

    onceonly.queue.shop ------------------------> stream onceonly-queue-shop -----> consumer onceonly
    onceonly.subscription.TYPE.shop ------------> stream onceonly-subscriptions     (one empty message for each subscription)
    onceonly.delayed.shop.MINUTE.INSTANT -------> stream onceonly-delayed

An endpoint that publishes an event lists its subscribers and stores a copy in the queue of each. In JetStream a subject
belongs to one stream, so the streams of several endpoints cannot capture the same event. One stream for all endpoints
would have to keep every message until its slowest reader has it, and needs a consumer for each endpoint and type.

Streams that exist are used as they are. An operator may create them with more replicas, limits or another storage.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from onceonly.adapters.nats.link import STORED, Link, Request
from onceonly.adapters.nats.names import CONSUMER, TopologyNames, kind_of, last_token
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.ports.transport import BrokerReport, Topology

_NANOSECONDS = 1_000_000_000
_DUPLICATES_SECONDS = 120
_MOST_SUBJECTS = 100_000  # in one answer of the server


async def declare(link: Link, names: TopologyNames, topologies: Sequence[Topology]) -> None:
    """Create what is missing, and delete the subscriptions that are gone. Harmless when several processes do it at once.

    Raises SetupError, CommitFailed.
    """
    if not topologies:
        await link.connection()
        return
    await declare_delayed(link, names)
    await _create(link, names.subscriptions, names.subscription_subjects, max_msgs_per_subject=1, discard="old")
    for topology in topologies:
        await _create(link, names.queue(topology.endpoint), names.queue_subject(topology.endpoint), retention="workqueue")
        await _declare_consumer(link, names.queue(topology.endpoint))
        requests = [Request(names.subscription(kind, topology.endpoint)) for kind in topology.events]
        if any(outcome is not STORED for outcome in await link.publish(requests)):
            raise CommitFailed(f"cannot subscribe {topology.endpoint!r} to its events: the stream did not confirm it")
        for kind in topology.gone:
            await link.api(f"STREAM.PURGE.{names.subscriptions}", {"filter": names.subscription(kind, topology.endpoint)})


async def declare_delayed(link: Link, names: TopologyNames) -> None:
    """Create the stream of delayed messages if it is missing."""
    await _create(link, names.delayed, names.delayed_subjects)


async def remove(link: Link, names: TopologyNames, topologies: Sequence[Topology]) -> None:
    """Delete everything behind a prefix: these queues with their messages, all subscriptions and all delayed messages."""
    queues = [names.queue(topology.endpoint) for topology in topologies]
    for stream in (*queues, names.subscriptions, names.delayed):
        await link.api(f"STREAM.DELETE.{stream}")


async def consumer_of(link: Link, stream: str) -> dict[str, Any] | None:
    """Return what the server says about the consumer of a queue; None if the stream or the consumer is missing."""
    return await link.api(f"CONSUMER.INFO.{stream}.{CONSUMER}")


async def exists(link: Link, stream: str) -> bool:
    """Report whether there is a stream of this name."""
    return await link.api(f"STREAM.INFO.{stream}") is not None


async def has_stream(link: Link, subject: str) -> bool:
    """Report whether a stream has a subject, even if it has no leader at the moment."""
    found = await link.api("STREAM.NAMES", {"subject": subject})
    return bool(found and found.get("streams"))


async def subjects(link: Link, stream: str, pattern: str) -> dict[str, int]:
    """Count the messages of a stream by their subjects. Empty if the stream does not exist."""
    found: dict[str, int] = {}
    while True:
        asked = {"subjects_filter": pattern, "offset": len(found)}
        answer = await link.api(f"STREAM.INFO.{stream}", asked)
        page = (answer or {}).get("state", {}).get("subjects") or {}
        found |= page
        if len(page) < _MOST_SUBJECTS:
            return found


async def subscribers(link: Link, names: TopologyNames, kinds: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """List the endpoints that subscribe to each of these event types."""
    wanted = tuple(dict.fromkeys(kinds))
    found = await asyncio.gather(*(subjects(link, names.subscriptions, names.subscribers(kind)) for kind in wanted))
    return {
        kind: tuple(endpoint for subject in each if (endpoint := last_token(subject)) is not None)
        for kind, each in zip(wanted, found, strict=True)
    }


async def subscriptions(link: Link, names: TopologyNames, endpoint: str) -> frozenset[str]:
    """List the event types that an endpoint subscribes to, but for those whose name is too long to be written."""
    found = await subjects(link, names.subscriptions, names.subscribed(endpoint))
    return frozenset(kind for subject in found if (kind := kind_of(subject)) is not None)


async def report(link: Link, names: TopologyNames, endpoint: str) -> BrokerReport:
    """Report how the messages of an endpoint are stored. Raises SetupError if they would be lost without a crash."""
    stream = names.queue(endpoint)
    connection = await link.connection()
    warnings: list[str] = []
    settings: tuple[tuple[str, str], ...] = ()
    for name in (stream, names.delayed, names.subscriptions):
        found = await link.api(f"STREAM.INFO.{name}")
        config = (found or {}).get("config", {})
        warnings += _stream_warnings(name, config)
        if name == stream:
            replicas = str(config.get("num_replicas", 1))
            settings = (("storage", config.get("storage", "file")), ("replicas", replicas), ("server", connection.version))
    consumer = ((await consumer_of(link, stream)) or {}).get("config", {})
    if consumer.get("max_deliver", -1) > 0:
        raise SetupError(
            f"consumer {CONSUMER!r} of stream {stream!r} gives a message up after {consumer['max_deliver']} deliveries"
            " (max_deliver), without a dead letter. Set it to -1"
        )
    return BrokerReport(settings=settings, warnings=tuple(warnings))


def _stream_warnings(name: str, config: dict[str, Any]) -> list[str]:
    if config.get("no_ack"):
        raise SetupError(f"stream {name!r} confirms no message (no_ack), so messages can be lost. Set it to false")
    found = []
    if config.get("storage") == "memory":
        found.append(f"stream {name!r} is stored in memory: a restart of the server loses its messages. Use file storage")
    if config.get("max_age", 0) > 0:
        found.append(f"stream {name!r} deletes messages after {config['max_age'] / _NANOSECONDS:g} s (max_age). Set it to 0")
    limits = [limit for limit in ("max_msgs", "max_bytes") if config.get(limit, -1) > 0]
    if limits and config.get("discard") == "old":
        found.append(f"stream {name!r} deletes its oldest messages when it is full ({', '.join(limits)}). Set discard to new")
    return found


async def _create(link: Link, stream: str, subject: str, **changed: Any) -> None:
    """Create a stream if it is missing. One that exists must have the subject, and keep messages for this use."""
    settings = {
        "name": stream,
        "subjects": [subject],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": link.address.replicas,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "max_age": 0,
        "duplicate_window": _DUPLICATES_SECONDS * _NANOSECONDS,
        **changed,
    }
    found = await link.api(f"STREAM.INFO.{stream}")
    if found is None:
        try:
            await link.api(f"STREAM.CREATE.{stream}", settings)
        except (
            SetupError,
            CommitFailed,
        ):  # another process may have created it meanwhile, or deleted the account's last stream
            if (found := await link.api(f"STREAM.INFO.{stream}")) is None:
                await link.api(f"STREAM.CREATE.{stream}", settings)
    config = (found or {"config": settings})["config"]
    if subject not in config.get("subjects", ()) or config.get("retention") != settings["retention"]:
        raise SetupError(
            f"stream {stream!r} exists with other settings: it needs the subject {subject!r} and retention"
            f" {settings['retention']}. Delete it, or use other names with the option prefix="
        )


async def _declare_consumer(link: Link, stream: str) -> None:
    """Create the consumer of a queue, or give it the lease of the URL."""
    wanted = {
        "durable_name": CONSUMER,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(link.address.lease * _NANOSECONDS),
        "max_deliver": -1,
        "max_ack_pending": -1,
        "max_waiting": 4096,
        "replay_policy": "instant",
    }
    found = await link.api(f"CONSUMER.INFO.{stream}.{CONSUMER}")
    if found is not None:
        if found["config"].get("ack_wait") == wanted["ack_wait"]:
            return
        wanted = found["config"] | {"ack_wait": wanted["ack_wait"]}
    await link.api(f"CONSUMER.DURABLE.CREATE.{stream}.{CONSUMER}", {"stream_name": stream, "config": wanted})
