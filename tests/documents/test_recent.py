"""Documents that a process remembers: never more than a number of them and of bytes, and each is used once."""

import pytest

from onceonly.documents.recent import RecentDocuments
from onceonly.ports.documents import Document


def document(size: int = 1, version: str = "1") -> Document:
    """Make a document of this size."""
    return Document(b"x" * size, version)


def test_a_document_is_taken_once() -> None:
    """A guess that was used is out of date."""
    recent = RecentDocuments()
    recent.add("a", document())
    assert recent.take(["a", "b"]) == {"a": document()}
    assert recent.take(["a", "b"]) == {}


def test_a_later_version_replaces_an_earlier_one() -> None:
    """Also in what is counted."""
    recent = RecentDocuments(size=10)
    for version in "123":
        recent.add("a", document(10, version))
    assert recent.take(["a"]) == {"a": document(10, "3")}


@pytest.mark.parametrize("limits", [{"documents": 2}, {"size": 20}])
def test_the_oldest_are_dropped(limits: dict[str, int]) -> None:
    """By number or by size, whichever limit is reached first."""
    recent = RecentDocuments(**limits)
    for key in "abc":
        recent.add(key, document(10))
    assert list(recent.take("abc")) == ["b", "c"]
    recent.add("d", document(10))
    recent.add("e", document(10))
    assert list(recent.take("de")) == ["d", "e"]


def test_a_document_that_is_too_large_is_not_held() -> None:
    """And leaves room for others."""
    recent = RecentDocuments(size=20)
    recent.add("a", document(21))
    recent.add("b", document(20))
    assert list(recent.take("ab")) == ["b"]


def test_a_document_is_dropped() -> None:
    """With its size."""
    recent = RecentDocuments(size=10)
    recent.add("a", document(10))
    assert recent.drop("a") == document(10)
    assert recent.drop("a") is None
    recent.add("b", document(10))
    assert list(recent.take("ab")) == ["b"]
