"""The stores of a run: each run has a part of its own, and deletes it at the end."""

from pathlib import Path

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.config.deduplication import DedupStore, History, Off, Tokens
from onceonly.ports.documents import Change
from onceonly_demo.backends import count_keys, empty
from onceonly_demo.locations import choose_locations
from onceonly_demo.options import Deduplication, DemoOptions

SQLITE, REDIS = "sqlite:///shop.db", "redis://127.0.0.1/0"


async def test_documents_are_deleted_page_by_page() -> None:
    """All of them."""
    documents = MemoryDocuments(Live())
    await documents.save([Change(key=f"{kind}/{number}", body=b"{}") for kind in ("entity", "token") for number in range(130)])
    assert await count_keys(documents, "token/") == 130
    await empty(documents)
    assert await documents.keys("") == ()


@pytest.mark.parametrize(
    ("store", "dedup_url", "deduplication", "kind", "is_inside"),
    [
        (SQLITE, "", Deduplication.HISTORY, History, False),
        (SQLITE, "", Deduplication.OFF, Off, False),
        (SQLITE, "", Deduplication.DEDUP_STORE, DedupStore, False),
        (SQLITE, "", Deduplication.TOKENS, Tokens, True),
        (SQLITE, REDIS, Deduplication.TOKENS, Tokens, False),
        (REDIS, "", Deduplication.TOKENS, Tokens, False),
    ],
)
def test_tokens_and_marks_are_in_the_store_unless_told_otherwise(
    store: str, dedup_url: str, deduplication: Deduplication, kind: type, *, is_inside: bool
) -> None:
    """In a SQL database tokens are in the store's own tables, which the empty URL says."""
    options = DemoOptions(store=store, transport="sqlite:///queue.db", dedup_url=dedup_url, deduplication=deduplication)
    setting = choose_locations(options, Path("nowhere")).setting
    assert type(setting) is kind
    if isinstance(setting, Tokens | DedupStore):
        assert setting.url.partition("?")[0] == ("" if is_inside else dedup_url or store)


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1/0",
        "dynamodb://eu-central-1/table?endpoint=http%3A%2F%2F127.0.0.1%3A1",
        "s3://bucket/demo?region=eu-central-1",
    ],
)
def test_two_runs_share_no_data(url: str) -> None:
    """Each has a prefix or a folder of its own."""
    one, two = (choose_locations(DemoOptions(store=url), Path("nowhere")).store for _ in range(2))
    assert one != two
    assert one.partition("://")[0] == url.partition("://")[0]
    assert set(url.partition("?")[2].split("&")) - {""} <= set(one.partition("?")[2].split("&"))
