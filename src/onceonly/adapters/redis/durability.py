"""What must be known of a Redis server before it stores anything: whether it forgets, evicts, or answers for another."""

import re
from collections.abc import Mapping
from typing import Any

from onceonly.model.errors import SetupError


def snapshots_only(loss: str) -> str:
    """Word the warning about a server that stores snapshots only."""
    return (
        "Redis has `appendonly no`: a crash loses acknowledged writes since the last snapshot, "
        f"{loss}. Set `appendonly yes` and `appendfsync always`"
    )


def late_flush(policy: str, loss: str) -> str:
    """Word the warning about a server that answers before the disk has the write."""
    return f"Redis has `appendfsync {policy}`: a crash loses the last acknowledged writes, {loss}. Set `appendfsync always`"


FLUSH_UNKNOWN = "CONFIG is forbidden, so persistence cannot be checked: make sure that `appendfsync always` is set"


def persistence(about: Mapping[str, Any], appendfsync: str | None, *, loss: str) -> tuple[str, ...]:
    """Return warnings about a crash of the server. `loss` is what follows from it, to complete a sentence."""
    if not about.get("aof_enabled"):
        return (snapshots_only(loss),)
    if appendfsync is None:
        return (FLUSH_UNKNOWN,)
    return () if appendfsync == "always" else (late_flush(appendfsync, loss),)


def failover(about: Mapping[str, Any], *, loss: str) -> tuple[str, ...]:
    """Return warnings about the loss of a primary."""
    return (f"Redis replicates asynchronously: a failover loses writes, {loss}",) if about.get("connected_slaves") else ()


def refuse(about: Mapping[str, Any], place: str, *, oldest: int, evicted: str) -> None:
    """Raise SetupError for a server that evicts (`evicted` is the consequence), is not a primary, or is too old."""
    policy = about.get("maxmemory_policy")
    if policy != "noeviction":
        raise SetupError(
            f"Redis at {place} has `maxmemory-policy {policy}`: it evicts {evicted}. Set `maxmemory-policy noeviction`"
        )
    if about.get("role") != "master":
        raise SetupError(f"{place} is a replica (its role is `{about.get('role')}`), so reads are stale: use the primary")
    version = re.match(r"[0-9]{1,4}", str(about.get("redis_version", "0")))
    if version is None or int(version[0]) < oldest:
        raise SetupError(f"{place} is Redis {about.get('redis_version')}: version {oldest} or later is needed")
