"""The objects in JetStream: a stream with one consumer for each endpoint, and two streams for all.

    onceonly.queue.shop ------------------------> stream onceonly-queue-shop -----> consumer onceonly
    onceonly.subscription.TYPE.shop ------------> stream onceonly-subscriptions     (one empty message for each subscription)
    onceonly.delayed.shop.MINUTE.INSTANT -------> stream onceonly-delayed

An endpoint that publishes an event lists its subscribers and stores a copy in the queue of each. In JetStream a subject
belongs to one stream, so the streams of several endpoints cannot capture the same event. One stream for all endpoints
would have to keep every message until its slowest reader has it, and needs a consumer for each endpoint and type.

Streams that exist are used as they are. An operator may create them with more replicas, limits or another storage.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from onceonly.adapters.nats.link import NatsLink, NatsRequest, read_answer
from onceonly.adapters.nats.names import CONSUMER, NatsNames, kind_of, subscriber_of
from onceonly.adapters.nats.requirements import (
    SettingRule,
    consumer_rules,
    problems,
    queue_rules,
    stream_rules,
    subscription_rules,
    unknown,
)
from onceonly.formats.undecodable import report_unreadable
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.model.limits import NAME_RULE
from onceonly.ports.transport import BrokerReport, Topology
from onceonly.queues.destinations import CopyOutcome

_NANOSECONDS = 1_000_000_000
_DUPLICATES_SECONDS = 120
_MOST_SUBJECTS = 100_000  # in one answer of the server
CHECK_SECONDS = 30.0
"""Seconds between two checks of the settings."""
ONE_REPLICA = (
    "stream {!r} has one replica: a power failure of its server loses what it confirmed since the last sync, by default up to 2"
    " minutes, and a lost disk loses all messages. Use `replicas=3` on three servers, or `sync_interval: always` and backups"
)


class _State(Struct):
    subjects: dict[str, int] | None = None


class _SubjectsAnswer(Struct):
    """What is used of the answer to STREAM.INFO with a filter of subjects."""

    state: _State = field(default_factory=_State)


class _ConfigAnswer(Struct):
    config: dict[str, Any]


class ConsumerInfo(Struct):
    """What is used of the answer to CONSUMER.INFO."""

    num_pending: int
    num_ack_pending: int


async def declare(link: NatsLink, names: NatsNames, topologies: Sequence[Topology]) -> None:
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
        requests = [NatsRequest(names.subscription(kind, topology.endpoint)) for kind in topology.events]
        if any(outcome is not CopyOutcome.TAKEN for outcome in await link.publish(requests)):
            raise CommitFailed(f"cannot subscribe {topology.endpoint!r} to its events: the stream did not confirm it")
        for kind in topology.gone:
            await link.api(f"STREAM.PURGE.{names.subscriptions}", {"filter": names.subscription(kind, topology.endpoint)})


async def declare_delayed(link: NatsLink, names: NatsNames) -> None:
    """Create the stream of delayed messages if it is missing."""
    await _create(link, names.delayed, names.delayed_subjects)


async def remove(link: NatsLink, names: NatsNames, topologies: Sequence[Topology]) -> None:
    """Delete everything behind a prefix: these queues with their messages, all subscriptions and all delayed messages."""
    queues = [names.queue(topology.endpoint) for topology in topologies]
    for stream in (*queues, names.subscriptions, names.delayed):
        await link.api(f"STREAM.DELETE.{stream}")


async def consumer_of(link: NatsLink, stream: str) -> ConsumerInfo | None:
    """Return what the server counts for the consumer of a queue; None if the stream or the consumer is missing."""
    found = await link.api(f"CONSUMER.INFO.{stream}.{CONSUMER}")
    return None if found is None else read_answer(found, ConsumerInfo)


async def exists(link: NatsLink, stream: str) -> bool:
    return await link.api(f"STREAM.INFO.{stream}") is not None


async def has_stream(link: NatsLink, subject: str) -> bool:
    """Report whether a stream has a subject, even if it has no leader at the moment."""
    found = await link.api("STREAM.NAMES", {"subject": subject})
    return bool(found and found.get("streams"))


async def subjects(link: NatsLink, stream: str, pattern: str) -> dict[str, int]:
    """Count the messages of a stream by their subjects. Empty if the stream does not exist."""
    found: dict[str, int] = {}
    while True:
        query = {"subjects_filter": pattern, "offset": len(found)}
        answer = await link.api(f"STREAM.INFO.{stream}", query)
        page = read_answer(answer or {}, _SubjectsAnswer).state.subjects or {}
        found |= page
        if len(page) < _MOST_SUBJECTS:
            return found


async def subscribers(link: NatsLink, names: NatsNames, kind: str, sender: str) -> tuple[str, ...]:
    """List the endpoints that subscribe to an event type. `sender` is for the log.

    Any user with the right to publish subscriptions can choose what is read here. What is not the name of an endpoint is left
    out and logged.
    """
    return tuple(_endpoints(await subjects(link, names.subscriptions, names.subscribers(kind)), sender))


def _endpoints(subscribed: Iterable[str], sender: str) -> Iterator[str]:
    for subject in subscribed:
        endpoint = subscriber_of(subject)
        if endpoint is None:
            report_unreadable(sender, "subscription", subject, f"ignored: {NAME_RULE}. Delete it from its stream")
        else:
            yield endpoint


async def subscriptions(link: NatsLink, names: NatsNames, endpoint: str) -> frozenset[str]:
    """List the event types that an endpoint subscribes to, but for those whose name is too long to be written."""
    found = await subjects(link, names.subscriptions, names.subscribed(endpoint))
    return frozenset(kind for subject in found if (kind := kind_of(subject)) is not None)


async def report(link: NatsLink, names: NatsNames, endpoint: str) -> BrokerReport:
    """Report how the messages of an endpoint are stored. Raises SetupError if they could be lost without a crash."""
    stream, subject = names.queue(endpoint), names.queue_subject(endpoint)
    connection = await link.connection()
    rules = {
        stream: queue_rules(subject),
        names.delayed: stream_rules(names.delayed_subjects),
        names.subscriptions: subscription_rules(names.subscription_subjects),
    }
    wrong: list[str] = []
    warnings: list[str] = []
    settings: tuple[tuple[str, str], ...] = ()

    def look(what: str, config: dict[str, Any], allowed: Mapping[str, SettingRule]) -> None:
        wrong.extend(f"{what}: {each}" for each in problems(config, allowed))
        warnings.extend(f"{what}: {each}. This version does not know the setting" for each in unknown(config, allowed))

    for name, allowed in rules.items():
        if (found := await link.api(f"STREAM.INFO.{name}")) is None:
            continue  # receiving reports a queue that is missing, and the next delayed send creates the stream again
        config = read_answer(found, _ConfigAnswer).config
        look(f"stream {name!r}", config, allowed)
        if config.get("storage") == "memory":
            warnings.append(
                f"stream {name!r} is stored in memory: a restart of the server loses its messages. Use file storage"
            )
        if name == stream:
            replicas = str(config.get("num_replicas", 1))
            if replicas == "1" and config.get("storage") != "memory":
                warnings.append(ONE_REPLICA.format(name))
            settings = (("storage", str(config.get("storage", "file"))), ("replicas", replicas), ("server", connection.version))
    if (consumer := await link.api(f"CONSUMER.INFO.{stream}.{CONSUMER}")) is not None:
        lease = int(link.address.lease * _NANOSECONDS)
        config = read_answer(consumer, _ConfigAnswer).config
        look(f"consumer {CONSUMER!r} of stream {stream!r}", config, consumer_rules(subject, lease))
    if wrong:
        raise SetupError(f"messages could be lost: {'; '.join(wrong)}")
    return BrokerReport(settings=settings, warnings=tuple(warnings), again_after=CHECK_SECONDS)


async def _create(link: NatsLink, stream: str, subject: str, **changed: Any) -> None:
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
    config = read_answer(found or {"config": settings}, _ConfigAnswer).config
    if subject not in config.get("subjects", ()) or config.get("retention") != settings["retention"]:
        raise SetupError(
            f"stream {stream!r} exists with other settings: it needs the subject {subject!r} and retention"
            f" {settings['retention']}. Delete it, or use other names with the option prefix="
        )


async def _declare_consumer(link: NatsLink, stream: str) -> None:
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
        config = read_answer(found, _ConfigAnswer).config
        if config.get("ack_wait") == wanted["ack_wait"]:
            return
        wanted = config | {"ack_wait": wanted["ack_wait"]}
    await link.api(f"CONSUMER.DURABLE.CREATE.{stream}.{CONSUMER}", {"stream_name": stream, "config": wanted})
