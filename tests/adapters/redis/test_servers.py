"""Servers that refuse, are full, lose connections, or are set up in a way that loses messages."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, ReadOnlyError

from onceonly.adapters.redis.address import read_address
from onceonly.adapters.redis.link import RedisLink
from onceonly.adapters.redis.transport import RedisTransport
from onceonly.model.errors import CommitFailed, OutcomeUnknown, QueueMissing, RetryableError, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from tests import ROOT
from tests.adapters.redis.harness import EVENT, PATIENCE, commands, ids, message, opened, take, until
from tests.servers.redis import own_redis
from tests.servers.swallowing import swallowing

pytestmark = pytest.mark.slow

TAKEN, REFUSED, UNKNOWN = (Answer.TAKEN,), (Answer.REFUSED,), (Answer.UNKNOWN,)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Run a server whose settings a test may change."""
    with own_redis("--busy-reply-threshold", "50") as url:
        yield url


async def test_a_server_without_memory_takes_nothing_and_loses_nothing(server: str) -> None:
    """What it rejects was not sent, and may be sent again. What is in a queue can be received, released and acked."""
    async with opened(server=server) as broker:
        transport = await broker.transport()
        due = SystemClock().now() + 50
        assert await transport.send([*commands("m1", "m2"), *commands("later", due=due)]) == TAKEN * 3
        await broker.plain.config_set("maxmemory", 1)
        try:
            for sends in (commands("m3"), [Send(message=message("m3"))], commands("m3", due=due + 60_000)):
                with pytest.raises(CommitFailed, match="maxmemory"):
                    await transport.send(sends)
            held = await take(transport, 2)
            await transport.extend(held)
            await transport.release(held[:1])
            await transport.ack(held[1:])
            again = await take(transport, 1)
            assert (ids(again), again[0].suspect) == (["m1"], False)
            await transport.ack(again)
            while True:  # until it is due
                with suppress(CommitFailed):
                    assert await transport.receive(10, 0.05) == ()
                    continue
                break
        finally:
            await broker.plain.config_set("maxmemory", 0)
        assert ids(await take(transport, 1)) == ["later"]


async def test_a_replica_takes_nothing(server: str) -> None:
    """It is refused when a queue is declared. Later it may become one: then what is sent fails, and can be sent again."""
    async with opened(server=server) as broker:
        transport = await broker.transport()
        await broker.plain.execute_command("REPLICAOF", "127.0.0.1", 1)
        try:
            with pytest.raises(CommitFailed, match="read only replica"):
                await transport.send(commands("m1"))
            with pytest.raises(SetupError, match="use the primary"):
                await transport.declare([])
        finally:
            await broker.plain.execute_command("REPLICAOF", "NO", "ONE")
        assert await transport.send(commands("m1")) == TAKEN


async def test_a_server_that_evicts_is_refused(server: str) -> None:
    """A queue is declared on a server with `noeviction` only."""
    async with opened(server=server) as broker:
        await broker.plain.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(SetupError, match="maxmemory-policy allkeys-lru"):
                await (await broker.transport()).declare([])
        finally:
            await broker.plain.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("--appendonly", "yes", "--appendfsync", "always"), ""),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "appendfsync everysec"),
        (("--appendonly", "yes", "--rename-command", "CONFIG", ""), "cannot be checked"),
        (("--appendonly", "no"), "Set `appendonly yes`"),
    ],
)
async def test_what_a_crash_can_lose_is_reported(settings: tuple[str, ...], words: str) -> None:
    """The report names the settings, and warns if a crash loses what was acknowledged."""
    with own_redis(*settings) as url:
        async with opened(server=url) as broker:
            report = await (await broker.transport()).check()
    assert dict(report.settings)["appendonly"] == settings[1]
    assert words in " ".join(report.warnings)
    assert bool(words) == bool(report.warnings)


async def test_a_busy_server_fails_calls_until_it_answers(server: str) -> None:
    """A script of another program that does not end makes every call fail, and nothing is lost."""
    async with opened(server=server) as broker:
        transport = await broker.transport()
        await transport.send(commands("m1"))
        async with Redis.from_url(server) as other:
            endless = asyncio.ensure_future(other.eval("while true do end", 0))
            with pytest.raises(RetryableError, match="BUSY"):
                await _send_on(transport)
            with pytest.raises(CommitFailed, match="BUSY"):
                await transport.receive(1, 0)
            await broker.plain.execute_command("SCRIPT", "KILL")
            await asyncio.wait([endless])
            assert endless.exception() is not None
        assert "m1" in ids(await take(transport, 1))


async def _send_on(transport: RedisTransport) -> None:
    while True:
        await transport.send(commands("filler"))


@pytest.mark.parametrize("error", [BusyLoadingError("LOADING"), ReadOnlyError("READONLY")])
async def test_errors_before_a_write_are_definite(error: Exception) -> None:
    """Redis answers them instead of running a script."""
    link = RedisLink(read_address("redis://h"))
    assert isinstance(link.translate(error, what="send"), CommitFailed)
    assert isinstance(link.translate(ConnectionError(), what="send"), OutcomeUnknown)
    await link.close()


async def test_held_deliveries_survive_a_lost_connection(server: str) -> None:
    """A lease belongs to a transport, not to a connection. After an error later calls work."""
    async with opened(server=server) as broker:
        transport = await broker.transport()
        await transport.send(commands("m1", "m2"))
        held = await take(transport, 2)
        waiting = asyncio.ensure_future(transport.receive(1, PATIENCE))
        for _ in range(3):
            await broker.plain.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            with suppress(RetryableError):
                await transport.extend(held)
        await transport.ack(held[:1])
        await transport.release(held[1:])
        try:
            again = await waiting
        except RetryableError:  # its own connection was lost between two of its calls
            again = tuple(await take(transport, 1))
        assert ids(again) == ["m2"]
        assert await transport.depth("shop") == Depth(waiting=0, held=1, delayed=0)


async def test_a_server_that_is_away_fails_each_call_in_time() -> None:
    """The error is one that a worker tries again after. Nothing was sent."""
    link = RedisLink(read_address("redis://127.0.0.1:1/0"))
    transport = RedisTransport(link, "shop")
    for call in (transport.declare([]), transport.receive(1, 0), transport.send(commands("m1")), transport.depth("shop")):
        with pytest.raises(CommitFailed, match=r"cannot .* at redis://127.0.0.1:1/0"):
            await call
    await transport.close()
    await link.close()


async def test_what_is_sent_while_the_connection_breaks_is_unknown(server: str) -> None:
    """The server may have it, so it is sent again."""
    async with opened(server=server) as broker:
        transport = await broker.transport()
        await transport.send(commands("warm"))
        await broker.plain.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        sending = asyncio.ensure_future(transport.send(commands("m1")))
        await until(lambda: _is_blocked(broker.plain))
        await broker.plain.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await broker.plain.execute_command("CLIENT", "UNPAUSE")
        assert await sending == UNKNOWN
        assert await transport.send(commands("m1")) == TAKEN


async def _is_blocked(client: Any) -> bool:
    return bool((await client.info("clients"))["blocked_clients"])


async def _is_linked(client: Any) -> bool:
    return bool((await client.info("replication"))["master_link_status"] == "up")


async def _is_complete(client: Any) -> bool:
    return "cluster_state:ok" in str(await client.execute_command("CLUSTER", "INFO"))


async def test_scripts_are_loaded_again_where_they_are_missing(server: str) -> None:
    """A server that restarted has none. Each message is sent once."""
    async with opened(server=server) as broker:
        transport = await broker.transport()
        events = [Send(message=message(f"e{number}")) for number in range(3)]
        for _ in range(2):
            await broker.plain.script_flush()
            assert await transport.send([*events, *commands("c")]) == TAKEN * 4
        await broker.plain.script_flush()
        got = await take(transport, 8)
        await broker.plain.script_flush()
        await transport.ack(got)
        assert sorted(ids(got)) == sorted(["e0", "e1", "e2", "c"] * 2)


async def test_a_key_of_another_program_is_a_setup_error(server: str) -> None:
    """The error names the key. An event that one subscriber cannot take is added to none, so it can be sent again."""
    async with opened(
        Topology(endpoint="audit", events=(EVENT,)), Topology(endpoint="shop", events=(EVENT,)), server=server
    ) as broker:
        transport = await broker.transport()
        await broker.plain.delete(broker.stream)
        await broker.plain.set(broker.stream, "something else")
        for call in (transport.send(commands("m1")), transport.receive(1, 0), transport.declare([Topology(endpoint="shop")])):
            with pytest.raises(SetupError, match="WRONGTYPE"):
                await call
        with pytest.raises(SetupError, match=r"WRONGTYPE the key .*stream:shop"):
            await transport.send([Send(message=message("e1"))])
        assert await broker.plain.xlen(broker.keys.queue("audit").stream) == 0


async def test_a_queue_that_was_deleted_is_reported_and_works_again_when_declared(server: str) -> None:
    """Commands to it are refused. Events wait for it: its subscriptions are still there."""
    async with opened(server=server) as broker:
        transport = await broker.transport()
        await broker.plain.delete(broker.stream)
        assert await transport.send(commands("m1")) == REFUSED
        assert await transport.send(commands("m1", due=SystemClock().now() + 60_000)) == REFUSED
        with pytest.raises(QueueMissing, match="onceonly topology create"):
            await transport.receive(1, 0)
        assert await transport.send([Send(message=message("e1"))]) == TAKEN
        with pytest.raises(QueueMissing):
            await transport.depth("shop")
        await transport.declare([Topology(endpoint="shop")])
        assert ids(await take(transport, 1)) == ["e1"]


def documented_permissions() -> list[str]:
    """Read the permissions in the documentation."""
    rules = (ROOT / "docs" / "reference" / "redis.md").read_text().partition("ACL SETUSER shop ")[2].partition("```")[0]
    return [rule for rule in rules.split() if rule.startswith("+")]


async def test_a_user_with_the_documented_permissions_can_do_everything(server: str) -> None:
    """And one with fewer is told which permission is missing."""
    async with opened(server=server) as broker:
        keys = f"~{broker.keys.start.decode()}*"
        await broker.plain.execute_command("ACL", "SETUSER", "worker", "on", ">secret", keys, *documented_permissions())
        await broker.plain.execute_command("ACL", "SETUSER", "reader", "on", ">secret", keys, "+info")
        worker = await broker.transport(url=broker.url.replace("redis://", "redis://worker:secret@"))
        await worker.declare([Topology(endpoint="shop", events=(EVENT,), gone=("other",))])
        await worker.check()
        soon = SystemClock().now() + 20
        assert await worker.send([*commands("m1"), Send(message=message("e1")), *commands("d1", due=soon)]) == TAKEN * 3
        assert await worker.subscriptions("shop") == {EVENT}
        waiting = asyncio.ensure_future(take(worker, 3))
        held = await waiting
        await worker.extend(held)
        await worker.release(held[:1])
        await worker.ack([*held[1:], *await take(worker, 1)])
        assert await worker.depth("shop") == Depth(waiting=0, held=0, delayed=0)
        assert await worker.receive(1, 0.05) == ()
        await worker.close()
        reader = await broker.transport(url=broker.url.replace("redis://", "redis://reader:secret@"))
        for call in (reader.send(commands("m1")), reader.receive(1, 0), reader.declare([Topology(endpoint="shop")])):
            with pytest.raises(SetupError, match="Grant this user the permission"):
                await call
        stranger = await broker.transport(url=broker.url.replace("redis://", "redis://worker:wrong@"))
        for call in (stranger.send(commands("m1")), stranger.receive(1, 0), stranger.declare([])):
            with pytest.raises(SetupError, match="Check the user and the password") as caught:
                await call
            assert "wrong" not in str(caught.value).replace("WRONGPASS", "")


async def test_a_message_is_sent_when_enough_replicas_have_it(server: str) -> None:
    """With `replicas=1` it is unknown while there is none, and taken when there is one."""
    async with opened(server=server, options="&replicas=1&timeout=2") as broker:
        transport = await broker.transport()
        assert await transport.send([*commands("m1"), *commands("x", to="nobody")]) == UNKNOWN + REFUSED
        port = broker.server.partition("127.0.0.1:")[2].partition("/")[0]
        with own_redis("--replicaof", "127.0.0.1", port) as replica:
            async with Redis.from_url(replica) as client:
                await until(partial(_is_linked, client))
            assert await transport.send(commands("m1")) == TAKEN
            report = await transport.check()
            assert dict(report.settings)["connected_slaves"] == "1"
            without = await (await broker.transport(url=broker.url.replace("&replicas=1", ""))).check()
            assert ("failover" in " ".join(report.warnings), "failover" in " ".join(without.warnings)) == (False, True)


async def test_a_cluster_is_followed_to_the_node_with_the_keys() -> None:
    """All keys of a prefix are in one slot. Any node of the cluster may be in the URL."""
    with ExitStack() as stack:
        urls = [stack.enter_context(own_redis("--cluster-enabled", "yes")) for _ in range(2)]
        nodes = [Redis.from_url(url) for url in urls]
        ports = [url.rpartition(":")[2].partition("/")[0] for url in urls]
        await nodes[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        await nodes[1].execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        await nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", ports[1])
        for node in nodes:
            await until(partial(_is_complete, node))
            await node.aclose()
        both = Topology(endpoint="shop", events=(EVENT,)), Topology(endpoint="audit", events=(EVENT,))
        for url in urls:
            link = RedisLink(read_address(f"{url}?prefix=there:"))
            transports = {name: RedisTransport(link, name) for name in ("shop", "audit")}
            transport = transports["shop"]
            await transport.declare(both)
            assert await transport.send([*commands("m1", "m2"), Send(message=message("e1"))]) == TAKEN * 3
            got = await take(transport, 3)
            assert sorted(ids(got)) == ["e1", "m1", "m2"]
            await transport.ack(got)
            assert ids(await take(transports["audit"], 1)) == ["e1"]
            assert await transport.receive(1, 0.1) == ()
            for each in transports.values():
                await each.close()
            await transport.remove(both)
            await link.close()


async def test_a_connection_that_has_gone_silent_is_replaced(server: str) -> None:
    """Each call ends after `timeout=` seconds. What was held before is still held, and can be acked."""
    async with swallowing(server) as (swallower, through), opened(server=server) as broker:
        transport = await broker.transport(url=f"{through}?prefix={broker.prefix}&timeout=1")
        assert await transport.send(commands("m1", "m2")) == TAKEN * 2
        held = await take(transport, 1)
        swallower.break_connections()
        async with asyncio.timeout(PATIENCE):
            assert await transport.send(commands("m3")) == UNKNOWN
            for call in (transport.receive(1, 10), transport.ack(held), transport.release(held), transport.depth("shop")):
                with pytest.raises(RetryableError):
                    await call
        swallower.keep_connections()
        await transport.ack(held)
        assert {*ids(await take(transport, 1))} == {"m2"}
