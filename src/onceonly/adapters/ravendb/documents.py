"""Documents in a RavenDB database: the id is the prefix and the key, `body` the JSON object, for people too.

Writes bear the change vector that they expect (If-Match), and an empty one for what must not exist. A change vector contains
the number of the write in its database, which never comes again, also not for a document that was deleted and made anew.

Reads by id and writes are transactions of one node. Each node of a database group accepts writes independently, and they are
merged later, so two nodes could both accept a write of one version. Therefore `check` refuses a database that is on several
nodes. Sharded databases are not supported.

The list of pending documents is a static index, because an index takes in a write some time after it. A query waits until the
index has all writes from before the query, and fails if that takes too long.

Proven on RavenDB 4.1. What is not proven: TLS with certificates of RavenDB's own, rights of users, and later versions.
"""

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from string import ascii_lowercase, digits
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from onceonly.adapters.ravendb.address import RavenDBAddress, read_address
from onceonly.adapters.ravendb.answers import (
    ApplicationResults,
    DatabaseTopology,
    ExpirationSettings,
    IndexResults,
    StoredDocument,
    StoredResults,
    decoded,
    version_in_batch,
    version_of,
)
from onceonly.adapters.ravendb.client import VERSION, RavenDBAnswer, RavenDBClient, failure, open_client, refused_setup
from onceonly.adapters.ravendb.together import (
    EXPIRES,
    MOST,
    Fields,
    address_problem,
    body_problem,
    check_different,
    command_of,
    document_of,
    expiry,
    id_of,
)
from onceonly.documents.bulk import read_all, write_all
from onceonly.documents.encoding import NativeValues, decode_key, from_native, is_text, key_encoder, to_native
from onceonly.documents.limits import DOCUMENT_LIMITS, can_be_held, check_limits, check_writes, shorter
from onceonly.documents.pending_order import before_of, entry_of, order_of
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, SetupError
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite, PendingDocument, Version
from onceonly.ports.environment import Clock

__all__ = ["RavenDBDocuments", "create", "open_documents"]

OLDEST = 4
"""The first major version with change vectors and this interface."""
_COLLECTION, INDEX = "OnceOnly", "OnceOnly/Pending"
_AT_ONCE = 16
_IN_ONE = 128  # documents of one read
_LEAST_PAGE = 100
_CUT = 2  # letters
_LONGEST_WAIT_SECONDS, _CREATION_SECONDS = 5.0, 60.0
_EXPIRATION, _EXPIRY_SECONDS = "expiration/config", 60
_NATIVE = NativeValues(least=-(2**63), greatest=2**63 - 1, whole_floats=True, is_name=lambda name: not name.startswith("@"))
_encode = key_encoder(ascii_lowercase + digits + "_-.:")  # ids ignore case, and a "/" or "|" at the end has a meaning
_MAP = (
    f"from document in docs.{_COLLECTION} where document.pending_at != null "
    "from endpoint in (IEnumerable<dynamic>)document.pending_for "
    "select new { pending_for = endpoint, pending_at = document.pending_at }"
)
_DEFINITION = {
    "Name": INDEX,
    "Maps": [_MAP],
    "Fields": {"pending_for": {"Indexing": "Exact"}, "pending_at": {"Indexing": "Exact"}},
}
_QUERY = (
    f"from index '{INDEX}' where pending_for = $endpoint and pending_at > $after and pending_at < $before "
    "order by pending_at select pending_at"
)


class RavenDBDocuments:
    """Documents in one database, below a prefix; see the port and the limits of this module.

    A read has up to 128 documents in one request. A write is a request of its own, 16 at a time. `expires` becomes `@expires`,
    which counts where the expiration of the database is on, and by the server's clock.
    """

    max_together = MOST

    def __init__(self, client: RavenDBClient) -> None:
        self._client = client
        self._prefix = f"{client.address.prefix}/"
        self.limits = shorter(DOCUMENT_LIMITS["RavenDB"], taken=len(self._prefix), encoded=3)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        wanted = {self._id_of(key): key for key in dict.fromkeys(keys) if can_be_held(key, self.limits)}
        ids = list(wanted)
        portions = [ids[start : start + _IN_ONE] for start in range(0, len(ids), _IN_ONE)]
        found = [each for some in await read_all(portions, self._read, at_once=_AT_ONCE) for each in some]
        return {wanted[each.metadata.id]: _document(each) for each in found}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        check_limits(changes, self.limits)
        return await write_all(changes, self._write, at_once=_AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their ids; see the port. Raises CommitFailed.

        The server goes to the first id that is not before `startAfter`, and leaves that one out. So it leaves out another
        document if `after` is missing. A page is used if `after` was there before and after the read, or if the page begins
        before `after`. Otherwise the read is repeated from a shorter text, which comes before `after`.
        """
        if not (is_text(prefix) and is_text(after)):
            return ()
        first, last = self._id_of(prefix), self._id_of(after)
        if _order(last) > _order(first) and not last.startswith(first):
            return ()
        start = last if len(last) > len(first) and last.startswith(first) else ""
        while True:
            page, is_sure = await self._page(first, start, max(limit, _LEAST_PAGE))
            if is_sure or (page and _order(page[0]) <= _order(last)):
                found = [each for each in page if not after or _order(each) > _order(last)]
                if found or not page:
                    return tuple(decode_key(each.removeprefix(self._prefix)) for each in found[:limit])
                start = page[-1]
            else:
                start = start[:-_CUT] if len(start) - _CUT > len(first) else ""

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """List entries of the index, which has only pending documents; see the port."""
        wait = min(_LONGEST_WAIT_SECONDS, self._client.address.timeout / 2)
        query = {
            "Query": _QUERY,
            "QueryParameters": {
                "endpoint": self._id_of(endpoint),
                "after": order_of(after.since, _encode(after.key)) if after is not None else before_of(0),
                "before": before_of(before),
            },
            "PageSize": limit,
            "WaitForNonStaleResults": True,
            "WaitForNonStaleResultsTimeout": f"00:00:{wait:06.3f}",
        }
        answer = await self._client.read("POST", self._client.of_database("queries"), content=query)
        if not answer.is_success:
            raise failure(answer, reads=True)
        found = decoded(answer, StoredResults)
        if found.is_stale:
            raise CommitFailed(f"the index {INDEX} of {self._client.address.place} lags by more than {wait:g} s")
        return tuple(entry_of(str(each.pending_at), self._key_of(each)) for each in found.results if each is not None)

    async def why_unlisted(self) -> str:
        """Return why not: the index is missing, or takes in no writes."""
        answer = await self._client.read("GET", self._client.of_database("indexes/stats"), params=[("name", INDEX)])
        if answer.is_missing:
            return f"the index {INDEX} does not exist: run `onceonly schema create module:endpoint`"
        if not answer.is_success:
            raise failure(answer, reads=True)
        (stats,) = decoded(answer, IndexResults).results
        state = {stats.state, stats.status} & {"Disabled", "Error", "Paused", "Faulty"}
        return f"the index {INDEX} is in state {', '.join(sorted(state))}: resume, enable or reset it" if state else ""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        names = {address: id_of(address) for address in dict.fromkeys(addresses)}
        found = await self._application(list(names.values()))
        return {address: document_of(fields) for address, name in names.items() if (fields := found.get(name)) is not None}

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write all in one batch, which is a transaction of the node; see the port.

        The metadata of what is replaced are read first, so that they are kept.
        """
        check_limits([change], self.limits)
        check_writes(self, change.key, writes)
        if change.body is None and not change.expected:
            raise CommitRefused("a document that must not exist cannot be deleted with others")
        names = [id_of(write.address) for write in writes]
        check_different([self._id_of(change.key), *names])
        replaced = [name for name, write in zip(names, writes, strict=True) if write.body is not None and write.expected != ""]
        there = await self._application(replaced, metadata_only=True)
        own: dict[str, Any] = {"Id": self._id_of(change.key), "ChangeVector": change.expected}
        own |= {"Type": "DELETE"} if change.body is None else {"Type": "PUT", "Document": self._item(change)}
        commands = [own, *(command_of(write, there.get(name)) for name, write in zip(names, writes, strict=True))]
        answer = await self._client.write("POST", self._client.of_database("bulk_docs"), content={"Commands": commands})
        if answer.is_refused:
            return None
        if not answer.is_success:
            raise failure(answer)
        return "" if change.body is None else _known(version_in_batch(answer, len(commands)))

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        if problem := address_problem(write.address):
            return problem
        if str(write.address.key[0]).lower().startswith(self._prefix):
            return f"ids that begin with {self._prefix!r} are those of the store"
        return "" if write.body is None else body_problem(write.body, self.limits.body)

    async def why_not_together(self) -> str:
        return ""

    async def check(self) -> tuple[str, ...]:
        """See the port; warns where expired documents stay. Raises SetupError, CommitFailed."""
        address = self._client.address
        expiration = await self._client.read("GET", self._client.of_database(_EXPIRATION))
        _refuse_version(expiration, address)
        if not (expiration.is_success or expiration.is_missing):
            raise refused_setup(expiration, address)
        topology = await self._client.read("GET", "/topology", params=[("name", address.database)])
        if not topology.is_success:
            raise refused_setup(topology, address)
        _refuse_nodes([node.cluster_tag for node in decoded(topology, DatabaseTopology).nodes], address)
        if expiration.is_missing or decoded(expiration, ExpirationSettings).disabled:
            return ("expired documents are not deleted: turn on the expiration of the database",)
        return ()

    async def _read(self, ids: Sequence[str], *, metadata_only: bool = False) -> list[StoredDocument]:
        params = [("metadataOnly", "true")] if metadata_only else []
        answer = await self._client.read("POST", self._client.of_database("docs"), params=params, content={"Ids": ids})
        if answer.is_missing:  # all of them
            return []
        if not answer.is_success:
            raise failure(answer, reads=True)
        return [each for each in decoded(answer, StoredResults).results if each is not None]

    async def _application(self, names: Sequence[str], *, metadata_only: bool = False) -> Mapping[str, Fields]:
        """Read documents of the application by their ids."""
        if not names:
            return {}
        params = [("metadataOnly", "true")] if metadata_only else []
        answer = await self._client.read("POST", self._client.of_database("docs"), params=params, content={"Ids": names})
        if answer.is_missing:  # all of them
            return {}
        if not answer.is_success:
            raise failure(answer, reads=True)
        found = decoded(answer, ApplicationResults).results
        return {name: fields for name, fields in zip(names, found, strict=True) if fields is not None}

    async def _write(self, change: Change) -> Version | None:
        name = self._id_of(change.key)
        if change.body is None and not change.expected:  # RavenDB refuses this condition also where nothing is
            return None if await self._read([name], metadata_only=True) else ""
        path, params = self._client.of_database("docs"), [("id", name)]
        if change.body is None:
            answer = await self._client.write("DELETE", path, params=params, expected=change.expected)
        else:
            item = self._item(change)
            answer = await self._client.write("PUT", path, params=params, content=item, expected=change.expected)
        if answer.is_refused:
            return None
        if not answer.is_success:
            raise failure(answer)
        return "" if change.body is None else _known(version_of(answer))

    async def _page(self, first: str, start: str, size: int) -> tuple[list[str], bool]:
        """List ids that begin with `first`, behind `start`, and whether none behind it was left out for sure."""
        params = [("startsWith", first), ("pageSize", str(size)), ("metadataOnly", "true")]
        if not start:
            return await self._ids(params), True
        earlier = await self._read([start], metadata_only=True)
        page = await self._ids([*params, ("startAfter", start)])
        return page, bool(earlier) and earlier == await self._read([start], metadata_only=True)

    async def _ids(self, params: Sequence[tuple[str, str]]) -> list[str]:
        answer = await self._client.read("GET", self._client.of_database("docs"), params=params)
        if not answer.is_success:
            raise failure(answer, reads=True)
        return [each.metadata.id for each in decoded(answer, StoredResults).results if each is not None]

    def _item(self, change: Change) -> dict[str, Any]:
        body = change.body or b""
        value = to_native(body, _NATIVE)
        item: dict[str, Any] = {"bytes": b64encode(body).decode()} if value is None else {"body": value}
        if change.pending_for:
            item["pending_for"] = [self._id_of(endpoint) for endpoint in change.pending_for]
            item["pending_at"] = order_of(change.pending_since, _encode(change.key))
        metadata = {"@collection": _COLLECTION}
        if change.expires:
            metadata[EXPIRES] = expiry(change.expires)
        return {**item, "@metadata": metadata}

    def _id_of(self, name: str) -> str:
        return self._prefix + _encode(name)

    def _key_of(self, stored: StoredDocument) -> str:
        return decode_key(stored.metadata.id.removeprefix(self._prefix))


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[RavenDBDocuments]:  # noqa: ARG001 - the server's counts
    """Open documents at ravendb://host:8080/database or ravendb+tls://host/database?certfile=client.pem.

    It connects at the first call. Raises SetupError when the URL is wrong.
    """
    async with open_client(read_address(url)) as client:
        yield RavenDBDocuments(client)


async def create(url: str) -> None:
    """Make the database on one node, turn on its expiration, and make the index, where they are missing.

    Without the rights for databases and their settings, let an operator create them. Raises SetupError, CommitFailed.
    """
    address = read_address(url)
    address = replace(address, timeout=max(address.timeout, _CREATION_SECONDS))
    async with open_client(address) as client:
        expiration = await client.read("GET", client.of_database(_EXPIRATION))
        _refuse_version(expiration, address)
        if expiration.has_no_database:
            params = [("name", address.database), ("replicationFactor", "1")]
            made = await client.write("PUT", "/admin/databases", params=params, content={"DatabaseName": address.database})
            if not made.is_success and not made.is_refused:  # another process was first
                raise refused_setup(made, address)
            expiration = await client.read("GET", client.of_database(_EXPIRATION))
        if expiration.is_missing:
            settings = {"Disabled": False, "DeleteFrequencyInSec": _EXPIRY_SECONDS}
            await _set(client, "POST", f"admin/{_EXPIRATION}", settings)
        elif not expiration.is_success:
            raise refused_setup(expiration, address)
        await _set(client, "PUT", "admin/indexes", {"Indexes": [_DEFINITION]})


async def _set(client: RavenDBClient, method: str, path: str, content: Mapping[str, Any]) -> None:
    answer = await client.write(method, client.of_database(path), content=content)
    if not answer.is_success:
        raise refused_setup(answer, client.address)


def _refuse_version(answer: RavenDBAnswer, address: RavenDBAddress) -> None:
    version = answer.headers.get(VERSION, "")
    major = version.partition(".")[0]
    if not major.isdigit():
        raise SetupError(f"{address.server} is not a RavenDB server (status {answer.status}): correct the URL")
    if int(major) < OLDEST:
        raise SetupError(f"{address.server} is RavenDB {version}: version {OLDEST} or later is needed")


def _refuse_nodes(tags: Sequence[str], address: RavenDBAddress) -> None:
    if len(tags) != 1:
        raise SetupError(
            f"{address.place} is on {len(tags)} nodes ({', '.join(tags)}), which accept writes independently, so a message may "
            "be handled twice. Use a database with replication factor 1"
        )


def _known(version: Version) -> Version:
    if not version:
        raise OutcomeUnknown("RavenDB returned no change vector for a write, so its version is unknown")
    return version


def _document(stored: StoredDocument) -> Document:
    if stored.body is not UNSET:
        return Document(body=from_native(stored.body), version=stored.metadata.version)
    if not isinstance(stored.data, str):
        raise CommitFailed(f"{stored.metadata.id!r} is not a document of onceonly: use a prefix that no other document has")
    return Document(body=b64decode(stored.data), version=stored.metadata.version)


def _order(name: str) -> str:
    """Return what the server sorts an id by."""
    return name.lower()
