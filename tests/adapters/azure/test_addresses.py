"""URLs of Azure storage, and the names that keys have there."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.adapters.azure.address import VARIABLE, read_address
from onceonly.adapters.azure.blob.client import open_container
from onceonly.adapters.azure.client import escaped, unescaped
from onceonly.adapters.azure.table.client import open_table
from onceonly.adapters.azure.table.documents import _place
from onceonly.model.errors import SetupError

KEY = "c2VjcmV0/Kw="
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.fixture(autouse=True)
def _no_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@given(TEXT, TEXT)
def test_a_key_is_written_in_safe_letters_and_read_back(key: str, prefix: str) -> None:
    """A byte takes three letters at most, and a prefix stays a prefix: of what it was one, and of nothing else."""
    text = escaped(key)
    assert unescaped(text) == key
    assert re.fullmatch(r"[A-Za-z0-9_/~-]*", text)
    assert len(text) <= 3 * len(key.encode())
    assert escaped(prefix + key).startswith(escaped(prefix))
    assert text.startswith(escaped(prefix)) == key.startswith(prefix)


def test_an_account_key_is_the_password_of_a_url() -> None:
    """With its slashes written as %2F; the service is where Azure has it."""
    address = read_address("azure-table://:c2VjcmV0%2FKw=@acme/orders", "table")
    assert (address.account, address.parts, address.endpoint) == ("acme", ("orders",), "https://acme.table.core.windows.net")
    assert address.key == KEY


def test_a_connection_string_says_the_key_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the same account; an endpoint in the URL goes before the one in it."""
    said = f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={KEY};EndpointSuffix=example.net"
    monkeypatch.setenv(VARIABLE, said)
    address = read_address("azure-blob://acme/box/some/folder", "blob")
    assert (address.endpoint, address.key) == ("https://acme.blob.example.net", KEY)
    monkeypatch.setenv(VARIABLE, f"{said};BlobEndpoint=http://127.0.0.1:1/acme")
    assert read_address("azure-blob://acme/box", "blob").endpoint == "http://127.0.0.1:1/acme"
    chosen = read_address("azure-blob://acme/box?endpoint=http://127.0.0.1:2/acme", "blob")
    assert chosen.endpoint == "http://127.0.0.1:2/acme"


def test_the_key_of_another_account_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection string for somewhere else must not sign requests to here."""
    monkeypatch.setenv(VARIABLE, f"AccountName=other;AccountKey={KEY};TableEndpoint=http://127.0.0.1:1/other")
    address = read_address("azure-table://:bWluZQ==@acme/orders", "table")
    assert (address.endpoint, address.key) == ("https://acme.table.core.windows.net", "bWluZQ==")


@pytest.mark.parametrize(
    "url",
    [
        "azure-table://:secret%21@acme/orders",
        "azure-table://acme",
        "azure-table:///orders",
        "azure-table://:secret00@Not_An_Account/orders",
        "azure-table://:secret00/Kw==@acme/orders",
        "azure-table://:secret00@acme/orders/more",
        "azure-table://:secret00@acme/o1",
        "azure-table://:secret00@acme/1orders",
        "azure-table://:secret00@acme/my-orders",
        "azure-table://:secret00@acme/orders?table=x",
        "azure-table://:secret00@acme/orders?endpoint=acme.example",
    ],
)
async def test_a_wrong_table_url_is_a_setup_error(url: str) -> None:
    """It says what to write, and never repeats a key."""
    with pytest.raises(SetupError) as caught:
        async with open_table(url):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "ab", "-box", "Box", "box_1", "b--x", "box/a b", "box/.", "box/a."])
async def test_a_wrong_blob_url_is_a_setup_error(path: str) -> None:
    """Containers and folders have names that need no escaping."""
    with pytest.raises(SetupError):
        async with open_container(f"azure-blob://:secret00@acme/{path}"):
            pass


def test_a_key_stays_where_it_is() -> None:
    """What is stored is found by later versions only if they look in the same partition, under the same name."""
    keys = ("entity/Account/42", "token/orders/a.b", "done/köln/00ff", "//")
    assert [_place(key) for key in keys] == [
        ("0", "entity.Account.42"),
        ("4", "token.orders.a~2eb"),
        ("5", "done.k~c3~b6ln.00ff"),
        ("9", ".."),
    ]
