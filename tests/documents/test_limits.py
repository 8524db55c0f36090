"""The limits of documents: one table, which the documentation and every adapter agree with."""

import pytest

from onceonly.documents.limits import DOCUMENT_LIMITS, KIB, MIB, can_be_held, check_limits, shorter
from onceonly.model.errors import CommitRefused
from onceonly.ports.documents import Change, DocumentLimits
from tests import ROOT

SMALL = DocumentLimits(service="this service", key=4, body=3)
DOCUMENTED = {
    "DynamoDB": "DynamoDB",
    "S3": "S3",
    "Azure Table": "Azure Table",
    "Azure Blob": "Azure Blob",
    "Cosmos DB": "Cosmos DB",
    "MongoDB 4.4+": "MongoDB",
    "RavenDB 4": "RavenDB",
    "Redis 5+": "Redis",
    "SQLite, PostgreSQL, MariaDB": "a SQL database",
    "memory": "memory",
}


def test_the_documentation_has_the_same_limits() -> None:
    """Its table of services names each one, and the largest document that it holds."""
    text = (ROOT / "docs" / "explanation" / "documents.md").read_text()
    lines = text.partition("| service | longest key |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {DOCUMENTED[row[0]] for row in rows} == set(DOCUMENT_LIMITS)
    for service, _, largest, *_ in rows:
        assert bytes_of(largest) == DOCUMENT_LIMITS[DOCUMENTED[service]].body, service


def bytes_of(words: str) -> int:
    """Read a size as people write it."""
    number, unit = words.replace(",", "").split()
    return round(float(number) * {"bytes": 1, "KiB": KIB, "MB": 10**6, "MiB": MIB}[unit])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(key="", body=b""), "the key of a document is empty"),
        (Change(key="\ud800", body=b""), "not valid UTF-8"),
        (Change(key="öxx/", body=b""), "is 5 bytes long; the limit of this service is 4"),
        (Change(key="a", body=b"1234"), "document 'a' is 4 bytes long; the limit of this service is 3"),
    ],
)
def test_what_cannot_be_held_is_refused(change: Change, words: str) -> None:
    """And the error says which document it is, and how long it may be."""
    with pytest.raises(CommitRefused, match=words):
        check_limits([Change(key="fine", body=b"123"), change], SMALL)
    assert can_be_held(change.key, SMALL) is (change.body != b"")


def test_a_prefix_and_an_encoding_make_keys_shorter() -> None:
    """Each byte counts as often as it is written at most."""
    assert shorter(DOCUMENT_LIMITS["S3"], taken=24, encoded=3).key == 333
    assert shorter(SMALL, taken=1) == DocumentLimits(service="this service", key=3, body=3)
