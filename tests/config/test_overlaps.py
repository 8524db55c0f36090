"""Places of one endpoint that share keys are refused where the endpoint is defined, however their URLs are spelled."""

import pytest

from onceonly import DedupStore, Endpoint, SetupError, Tokens

S3 = "s3://bucket/shop"
BLOB = "azure-blob://account/container/shop"
SAME = {
    S3: [
        S3,
        "s3://BUCKET/shop/",
        "s3://key:secret@bucket//shop?region=eu-central-1&timeout=5",
        "s3://bucket/shop?endpoint=https://s3.eu-central-1.amazonaws.com",
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/shop/receipts",
    ],
    "s3://bucket/shop?endpoint=http://127.0.0.1:4566": [
        "s3://bucket/shop?region=us-east-1&endpoint=http://127.0.0.1:4566/",
        "s3://bucket/shop/receipts?endpoint=http://127.0.0.1:4566",
    ],
    "s3://bucket/shop?endpoint=https://minio.example": ["s3://bucket/shop?endpoint=https://MinIO.example:443/"],
    BLOB: [
        BLOB,
        "azure-blob://ACCOUNT/container//shop/",
        "azure-blob://:a2V5@account/container/sho%70",
        "azure-blob://account/container/shop?endpoint=https://account.blob.core.windows.net/",
        "azure-blob://account/container",
        "azure-blob://account/container/shop/receipts",
    ],
}
OTHER = {
    S3: [
        "s3://bucket/shop-receipts",
        "s3://bucket/sho",
        "s3://other/shop",
        "s3://bucket/shop?endpoint=https://minio.example",
        "azure-blob://account/container/shop",
        "folder:///shop",
    ],
    BLOB: [
        "azure-blob://account/container/shop2",
        "azure-blob://account/other/shop",
        "azure-blob://another/container/shop",
        "azure-blob://account/container/shop?endpoint=http://127.0.0.1:10000/account",
        "s3://container/shop",
    ],
    "memory://shop": ["memory://shop"],
    "sqlite:///shop/shop.db": ["folder:///shop"],
}
SHARED = [(store, blobs) for store, others in SAME.items() for blobs in others]
APART = [(store, blobs) for store, others in OTHER.items() for blobs in others]


def define(**settings: object) -> Endpoint:
    """Define an endpoint with these settings."""
    needed: dict[str, object] = {"store": "sqlite:///shop.db", "transport": "sqlite:///queue.db"}
    return Endpoint("shop", **(needed | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(("store", "blobs"), [*SHARED, *((blobs, store) for store, blobs in SHARED)])
def test_blobs_may_not_be_where_the_store_is(store: str, blobs: str) -> None:
    """A store lists and deletes below its prefix, and a handler reads blobs by any name."""
    with pytest.raises(SetupError, match=r"blobs .* and store .* share keys.*Give blobs a place of its own") as caught:
        define(store=store, blobs=blobs)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("store", "blobs"), APART)
def test_blobs_may_be_next_to_the_store(store: str, blobs: str) -> None:
    """In memory blobs and documents have names of their own, and so has a file next to others in a folder."""
    define(store=store, blobs=blobs)


@pytest.mark.parametrize(("documents", "blobs"), [(store, others[-1]) for store, others in SAME.items()])
def test_blobs_may_not_be_where_any_documents_are(documents: str, blobs: str) -> None:
    """The dead letters, the dedup store and the tokens are documents as well."""
    with pytest.raises(SetupError, match=r"blobs .* and dead_letters .* share keys"):
        define(dead_letters=documents, blobs=blobs)
    with pytest.raises(SetupError, match=r"blobs .* and deduplication .* share keys"):
        define(deduplication=DedupStore(documents), blobs=blobs)
    with pytest.raises(SetupError, match=r"blobs .* and tokens .* share keys"):
        define(deduplication=Tokens(documents, subscribers={}), blobs=blobs)


@pytest.mark.parametrize("place", [S3, BLOB, "dynamodb://eu-central-1/shop", "redis://host/0", "mongodb://host/shop"])
def test_documents_of_all_kinds_may_be_in_one_place(place: str) -> None:
    """Their keys begin with different words."""
    define(store=place, dead_letters=place, deduplication=DedupStore(place))
    define(store=place, dead_letters=place, deduplication=Tokens(place, subscribers={}))


INSIDE = [
    (S3, "s3://bucket/shop/{}"),
    (BLOB, "azure-blob://account/container/shop/{}"),
    ("dynamodb://eu-central-1/shop", "dynamodb://eu-central-1/shop?prefix=onceonly/{}/"),
]


@pytest.mark.parametrize(("outer", "inner"), INSIDE)
def test_documents_may_not_be_where_others_are_listed(outer: str, inner: str) -> None:
    """What is listed is read and, when it is old, deleted."""
    with pytest.raises(SetupError, match=r"dead_letters .* is where store .* keeps its register/ documents"):
        define(store=outer, dead_letters=inner.format("register"))
    with pytest.raises(SetupError, match=r"store .* is where deduplication .* keeps its done/ documents"):
        define(store=inner.format("done"), deduplication=DedupStore(outer))
    with pytest.raises(SetupError, match=r"store .* is where tokens .* keeps its token/ documents"):
        define(store=inner.format("token"), deduplication=Tokens(outer, subscribers={}))


@pytest.mark.parametrize(("outer", "inner"), INSIDE)
def test_documents_may_be_inside_others_elsewhere(outer: str, inner: str) -> None:
    """Nothing lists them there, and no key is that of another document."""
    define(store=outer, deduplication=DedupStore(inner.format("seen")), dead_letters=inner.format("letters"))


@pytest.mark.parametrize("place", [S3, BLOB, "dynamodb://eu-central-1/shop", "redis://host/0", "memory://shop"])
def test_projections_may_be_with_documents_and_with_each_other(place: str) -> None:
    """Their keys begin with a word of their own, and with the name of the projection."""
    define(store=place, projections={"cache": place, "search": place})


@pytest.mark.parametrize(("place", "blobs"), [(store, others[-1]) for store, others in SAME.items()])
def test_blobs_may_not_be_where_projections_are(place: str, blobs: str) -> None:
    """They are documents, too."""
    with pytest.raises(SetupError, match=r"blobs .* and projections .* share keys"):
        define(projections={"cache": place}, blobs=blobs)


@pytest.mark.parametrize(("outer", "inner"), INSIDE)
def test_documents_may_not_be_where_tombstones_are_listed(outer: str, inner: str) -> None:
    """They would be removed."""
    with pytest.raises(SetupError, match=r"store .* is where projections .* keeps its tombstone/ documents"):
        define(store=inner.format("tombstone"), projections={"cache": outer})
