"""Documents in Redis: a hash for each, compared and set by a Lua script, which Redis runs as one step.

What Redis does not promise on its own: it acknowledges a write before it is on disk (`appendonly yes` and `appendfsync
always` change that), and a fail-over to a replica loses acknowledged writes and lets the old master answer stale reads. A
lost claim is a message handled twice. `check` refuses a server that evicts, is a replica, or part of a cluster, and warns
of the rest. In a cluster the keys of one script must share a slot, so it would hold everything in one node for nothing.

Next to the documents there are two sorted sets: the keys in order, for lists, and the keys with an expiry, so that saves
clean the lists of documents that Redis dropped. For each endpoint there is one more: the keys of documents with unsent
messages, by the time of the earliest, which the script that saves a document changes. Relays read it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from onceonly.adapters.redis.address import RedisAddress, read_address
from onceonly.adapters.redis.client import (
    LuaScript,
    connect,
    failover,
    open_client,
    persistence,
    refuse_server,
    refused_setup,
    translated,
)
from onceonly.documents.bulk import split, write_requests
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.documents.encoding import is_text
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits
from onceonly.formats.undecodable import report_unreadable
from onceonly.model.errors import SetupError
from onceonly.ports.documents import Change, Document, PendingDocument, Version
from onceonly.ports.environment import Clock

__all__ = ["RedisDocuments", "create", "open_documents"]

OLDEST = 5  # the version since which a script may ask for the time before it writes
_AT_ONCE = 500  # documents in one script: the server does nothing else meanwhile
_BYTES_AT_ONCE = 4 * 1024 * 1024
_LOST: tuple[type[Exception], ...] = (RedisError, *DRIVER_FAULTS)
_TWICE = "and messages may be handled twice"

_SAVE = """
local cut, answers, time = tonumber(ARGV[1]), {}, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local index, expiring, prefix, pending = KEYS[1], KEYS[2], string.sub(KEYS[3], 1, cut), ARGV[2]
for at = 1, 2 do  -- before the first write
  local kind = redis.call('TYPE', KEYS[at])['ok']
  if kind ~= 'none' and kind ~= 'zset' then return {err = 'WRONGTYPE the key ' .. KEYS[at] .. ' is a ' .. kind} end
end
for i = 3, #KEYS do
  for name in string.gmatch(ARGV[(i - 3) * 6 + 8], '[^,]+') do
    local kind = redis.call('TYPE', pending .. name)['ok']
    if kind ~= 'none' and kind ~= 'zset' then return {err = 'WRONGTYPE the key ' .. pending .. name .. ' is a ' .. kind} end
  end
end
for i = 3, #KEYS do
  local key, at = KEYS[i], (i - 3) * 6 + 3
  local member = string.sub(key, cut + 1)
  local known = redis.pcall('HMGET', key, 'version', 'pending')
  local is_foreign = known['err'] and true or false
  if is_foreign and not string.find(known['err'], 'WRONGTYPE', 1, true) then return known end
  if is_foreign or (known[1] or '') ~= ARGV[at] then  -- a key of another type has no version
    answers[i - 2] = 0
  else
    answers[i - 2] = 1
    local names, listed = ARGV[at + 5], known[2] or ''
    for name in string.gmatch(listed, '[^,]+') do
      if not string.find(',' .. names .. ',', ',' .. name .. ',', 1, true) then
        redis.pcall('ZREM', pending .. name, member)
      end
    end
    for name in string.gmatch(names, '[^,]+') do redis.call('ZADD', pending .. name, ARGV[at + 4], member) end
    if ARGV[at + 1] == '' then
      redis.call('DEL', key)
      redis.call('ZREM', index, member)
      redis.call('ZREM', expiring, member)
    else
      redis.call('HSET', key, 'version', ARGV[at + 1], 'body', ARGV[at + 2])
      if names ~= '' then redis.call('HSET', key, 'pending', names)
      elseif listed ~= '' then redis.call('HDEL', key, 'pending') end
      redis.call('ZADD', index, 0, member)
      if ARGV[at + 3] == '' then
        redis.call('PERSIST', key)
        redis.call('ZREM', expiring, member)
      else
        local expires = string.format('%.0f', now + tonumber(ARGV[at + 3]))
        redis.call('ZADD', expiring, expires, member)
        redis.call('PEXPIREAT', key, expires)
      end
    end
  end
end
local gone = redis.call('ZRANGEBYSCORE', expiring, '-inf', string.format('%.0f', now), 'LIMIT', 0, 2 * (#KEYS - 2))
for _, member in ipairs(gone) do
  if redis.call('EXISTS', prefix .. member) == 0 then
    redis.call('ZREM', index, member)
    redis.call('ZREM', expiring, member)
  end
end
return answers
"""
_LOAD = """
local found = {}
for i, key in ipairs(KEYS) do
  found[i] = redis.pcall('HMGET', key, 'version', 'body')
  if found[i]['err'] then
    if not string.find(found[i]['err'], 'WRONGTYPE', 1, true) then return found[i] end
    found[i] = {false, false, true}
  end
end
return found
"""


class RedisDocuments:
    """Documents behind one prefix in one database of a Redis server; see the port and the limits of this module.

    Many documents are one script of up to 500, so one round trip. `expires` is counted on the given clock and kept by the
    server's.
    """

    limits = DOCUMENT_LIMITS["Redis"]

    def __init__(self, client: Redis, address: RedisAddress, *, clock: Clock) -> None:
        self._client = client
        self._address = address
        self._clock = clock
        self._prefix = f"{address.prefix}d:".encode()
        self._index, self._expiring = f"{address.prefix}i".encode(), f"{address.prefix}e".encode()
        self._pending = f"{address.prefix}p:".encode()
        self._saving, self._loading = LuaScript(client, _SAVE), LuaScript(client, _LOAD)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        loaded: dict[str, Document] = {}
        wanted = [key for key in dict.fromkeys(keys) if is_text(key)]
        try:
            for start in range(0, len(wanted), _AT_ONCE):
                part = wanted[start : start + _AT_ONCE]
                found = await self._loading.run([self._key(key) for key in part], [])
                for key, (version, body, *is_foreign) in zip(part, found, strict=True):
                    if is_foreign:
                        report_unreadable("", "document", self._key(key), "another program uses the key: delete it")
                    if version is not None:
                        loaded[key] = Document(body=body, version=version.decode())
        except _LOST as error:
            raise translated(error, reads=True) from error
        return loaded

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        check_limits(changes, self.limits)
        if not changes:
            return ()
        await connect(self._client)
        scripts = list(split(changes, most=_AT_ONCE, size=_BYTES_AT_ONCE))
        return await write_requests(changes, scripts, self._save, at_once=1)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their bytes; see the port. Raises CommitFailed."""
        first, behind = prefix.encode(), after.encode()
        low = b"(" + behind if behind >= first and behind else b"[" + first
        high = b"[" + first + b"\xff" if first else b"+"  # no UTF-8 has this byte
        listed: list[str] = []
        try:
            while len(listed) < limit:
                found = await self._client.zrangebylex(self._index, low, high, start=0, num=limit)
                members = [member for member in found if isinstance(member, bytes)]
                listed += await self._existing(members)
                if len(members) < limit:
                    break
                low = b"(" + members[-1]
        except _LOST as error:
            raise translated(error, reads=True) from error
        return tuple(listed[:limit])

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """List entries of the endpoint's sorted set by their times, then by the bytes of their keys; see the port."""
        name, low, asked = self._pending + endpoint.encode(), after.since if after is not None else 0, limit + 1
        try:
            while True:
                found = await self._client.zrangebyscore(name, low, f"({before}", start=0, num=asked, withscores=True)
                rows = cast("list[tuple[bytes, float]]", found)
                entries = [PendingDocument(member.decode(), int(score)) for member, score in rows]
                listed = [each for each in entries if after is None or _order(each) > _order(after)]
                if len(listed) >= limit or len(entries) < asked:
                    return tuple(listed[:limit])
                asked *= 2  # as many have the very instant of `after`
        except _LOST as error:
            raise translated(error, reads=True) from error

    async def why_unlisted(self) -> str:
        return ""

    async def check(self) -> tuple[str, ...]:
        """See the port; warns where acknowledged writes can be lost. Raises SetupError, CommitFailed."""
        try:
            about = await self._client.info()
            _refuse(about, self._address)
            return (*await self._durability(about), *failover(about, loss=_TWICE))
        except _LOST as error:
            raise refused_setup(error, self._address) from error

    async def _save(self, changes: Sequence[Change]) -> list[Version | None]:
        now, versions = self._clock.now(), ["" if change.body is None else uuid4().hex for change in changes]
        arguments = [str(len(self._prefix)).encode(), self._pending]
        for change, version in zip(changes, versions, strict=True):
            left = str(change.expires - now).encode() if change.expires else b""
            arguments += [change.expected.encode(), version.encode(), change.body or b"", left]
            names = ",".join(change.pending_for) if change.body is not None else ""
            arguments += [str(change.pending_since).encode(), names.encode()]
        keys = [self._index, self._expiring, *(self._key(change.key) for change in changes)]
        try:
            done = await self._saving.run(keys, arguments)
        except _LOST as error:
            raise translated(error) from error
        return [version if each else None for version, each in zip(versions, done, strict=True)]

    async def _existing(self, members: Sequence[bytes]) -> list[str]:
        """Leave out what Redis has dropped since, and the next save has not yet taken from the list."""
        async with self._client.pipeline(transaction=False) as pipe:
            for member in members:
                pipe.exists(self._prefix + member)
            there = await pipe.execute()
        return [member.decode() for member, is_there in zip(members, there, strict=True) if is_there]

    async def _durability(self, about: Mapping[str, Any]) -> tuple[str, ...]:
        fsync = None
        if about.get("aof_enabled"):
            with suppress(ResponseError):
                fsync = (await self._client.config_get("appendfsync")).get("appendfsync")
        return persistence(about, fsync, loss=_TWICE)

    def _key(self, key: str) -> bytes:
        return self._prefix + key.encode()


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[RedisDocuments]:
    """Open documents at redis://user:password@host:6379/0?prefix=onceonly: (rediss:// for TLS); connects at the first call.

    Raises SetupError when the URL is wrong.
    """
    address = read_address(url)
    async with open_client(address) as client:
        yield RedisDocuments(client, address, clock=clock)


async def create(url: str) -> None:
    """Do nothing but look at the URL: Redis makes what is written. Raises SetupError when the URL is wrong."""
    read_address(url)


def _order(entry: PendingDocument) -> tuple[int, bytes]:
    """Return by what Redis sorts members."""
    return entry.since, entry.key.encode()


def _refuse(about: Mapping[str, Any], address: RedisAddress) -> None:
    evicted = "claims when memory is full, and messages would be handled twice"
    refuse_server(about, address.place, oldest=OLDEST, evicted=evicted)
    if about.get("cluster_enabled"):
        raise SetupError(
            f"{address.place} is part of a Redis cluster, where a script cannot access all keys: use a single server"
        )
