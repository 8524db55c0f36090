"""Documents of the application: their addresses, and what a batch has for them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onceonly.adapters.ravendb.documents import RavenDBDocuments, open_documents
from onceonly.model.errors import CommitRefused, OutcomeUnknown
from onceonly.ports.documents import Change, DocumentAddress, DocumentWrite
from onceonly_conformance.clock import ManualClock
from tests.adapters.ravendb.scripted import Reply, Request, opened

OWN = Change(key="k", body=b"{}")


def _write(*key: str | int, collection: str = "", **values: Any) -> DocumentWrite:
    return DocumentWrite(address=DocumentAddress(collection, key), **{"body": b"{}", **values})


@pytest.fixture
async def documents() -> AsyncIterator[RavenDBDocuments]:
    """Open documents that are never asked for anything."""
    async with open_documents("ravendb://127.0.0.1:1/shop", clock=ManualClock()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_write("receipts/1"), ""),
        (_write(17), ""),
        (_write(" K é "), ""),
        (_write("a", 1), "an id has one part, not 2"),
        (_write("a/"), "ends with"),
        (_write("a|"), "ends with"),
        (_write("a\tb"), "control characters"),
        (_write("\ud800"), "control characters"),
        (_write("é" * 256), ""),
        (_write("é" * 257), "an id of 514 bytes is too long"),
        (_write("OnceOnly/x"), "ids that begin with 'onceonly/'"),
        (_write("a", body=b'{"@metadata":{}}'), "metadata of its own"),
        (_write("a", body=b'{"b":{"@metadata":{}}}'), ""),
        (_write("a", body=b'{"b":"%s"}' % (b"x" * 2**24)), "the limit is 16,777,216"),
        (_write("a", body=None, expected="A:1-x"), ""),
    ],
)
def test_what_cannot_be_a_document_is_told_why(documents: RavenDBDocuments, write: DocumentWrite, reason: str) -> None:
    problem = documents.problem_of("entity/Account/a", write)
    assert reason in problem
    assert bool(reason) == bool(problem)


@pytest.mark.parametrize("names", [("a", "A"), ("É", "é"), ("1", 1)])
async def test_two_writes_of_one_document_are_refused(documents: RavenDBDocuments, names: tuple[str | int, str | int]) -> None:
    """RavenDB ignores case, and the second would never find the version of before the first."""
    with pytest.raises(CommitRefused, match="are the same document"):
        await documents.save_together(OWN, [_write(name, expected="") for name in names])


def _there(metadata: dict[str, Any], commands: list[dict[str, Any]]) -> Any:
    own = {"@id": "receipts/1", "@change-vector": "A:1-x", "@last-modified": "2026-01-01T00:00:00Z"}

    def answers(request: Request) -> Reply:
        if request.path.endswith("/docs"):
            return Reply(200, {"Results": [{"@metadata": {**own, **metadata}} for _ in request.content["Ids"]]})
        commands.extend(request.content["Commands"])
        return Reply(201, {"Results": [{"Type": "PUT", "@change-vector": "A:2-x"} for _ in request.content["Commands"]]})

    return answers


async def test_what_users_gave_a_document_is_kept() -> None:
    """Its collection and its other metadata, but not its expiry: each write has its own."""
    commands: list[dict[str, Any]] = []
    there = {"@collection": "Receipts", "Raven-Clr-Type": "Shop.Receipt, Shop", "@expires": "2030-01-01T00:00:00Z"}
    writes = [
        _write("receipts/1", collection="Receipts", body=b'{"total":1.50}'),
        _write("receipts/2", expires=1_800_000_000_000, expected="A:1-x"),
    ]
    async with opened(_there(there, commands)) as (documents, asked):
        assert await documents.save_together(OWN, writes) == "A:2-x"
    del there["@expires"]
    assert [request.path.rpartition("/")[2] for request in asked] == ["docs", "bulk_docs"]
    own, first, second = commands
    assert (own["Id"], own["Type"], own["ChangeVector"]) == ("onceonly/k", "PUT", "")
    document = {"total": 1.5, "@metadata": there}
    assert first == {"Type": "PUT", "Id": "receipts/1", "ChangeVector": None, "Document": document}
    assert second["ChangeVector"] == "A:1-x"
    assert second["Document"] == {"@metadata": {**there, "@expires": "2027-01-15T08:00:00.000000Z"}}


async def test_a_document_of_another_collection_is_refused() -> None:
    """RavenDB does not move one by a write."""
    commands: list[dict[str, Any]] = []
    async with opened(_there({"@collection": "Orders"}, commands)) as (documents, _):
        with pytest.raises(CommitRefused, match=r"is in the collection 'Orders', not in 'Receipts'"):
            await documents.save_together(OWN, [_write("receipts/1", collection="Receipts")])
    assert commands == []


async def test_new_documents_are_not_read_before() -> None:
    """Nor are deleted ones."""
    commands: list[dict[str, Any]] = []
    writes = [_write("a", expected="", collection="Receipts"), _write("b", body=None, expected="A:1-x")]
    async with opened(_there({}, commands)) as (documents, asked):
        await documents.save_together(OWN, writes)
    assert len(asked) == 1
    assert commands[1]["Document"] == {"@metadata": {"@collection": "Receipts"}}
    assert commands[2] == {"Type": "DELETE", "Id": "b", "ChangeVector": "A:1-x"}


async def test_only_the_last_results_of_a_batch_are_true() -> None:
    """RavenDB 4.1 answers with those of a run that it has undone as well, before them."""
    batch = [{"Type": "PUT", "@id": name, "@change-vector": f"A:{number}-x"} for number in (1, 5) for name in ("k", "a")]

    async with opened(lambda _: Reply(201, {"Results": batch})) as (documents, _):
        assert await documents.save_together(OWN, [_write("a", expected="")]) == "A:5-x"
    async with opened(lambda _: Reply(201, {"Results": batch[:1]})) as (documents, _):
        with pytest.raises(OutcomeUnknown):
            await documents.save_together(OWN, [_write("a", expected="")])
