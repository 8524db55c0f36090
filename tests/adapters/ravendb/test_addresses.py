"""The URLs of RavenDB databases, and TLS with the certificates that they name."""

import ssl
from pathlib import Path

import pytest

from onceonly.adapters.ravendb.address import read_address
from onceonly.adapters.ravendb.documents import open_documents
from onceonly.model.errors import CommitFailed, SetupError
from onceonly_conformance.clock import ManualClock
from tests.adapters.ravendb.scripted import Reply, scripted
from tests.servers.certificates import NAME, Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make certificates for this module."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize(
    ("url", "server", "database", "prefix"),
    [
        ("ravendb://host/shop", "http://host:8080", "shop", "onceonly"),
        ("ravendb://host:81/Shop.1?prefix=a_b", "http://host:81", "Shop.1", "a_b"),
        ("ravendb+tls://a.shop.ravendb.cloud/shop", "https://a.shop.ravendb.cloud:443", "shop", "onceonly"),
        ("ravendb+tls://[::1]:8443/shop", "https://[::1]:8443", "shop", "onceonly"),
    ],
)
def test_a_url_names_a_database(url: str, server: str, database: str, prefix: str) -> None:
    found = read_address(url)
    assert (found.server, found.database, found.prefix) == (server, database, prefix)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ravendb://host", "needs the name of a database"),
        ("ravendb://host/a/b", "needs the name of a database"),
        ("ravendb:///shop", "has no host"),
        ("ravendb://user:secret@host/shop", "RavenDB has no passwords"),
        ("ravendb://host/shop?certfile=a.pem", "options for TLS"),
        ("ravendb+tls://host/shop?keyfile=a.pem", "option keyfile needs certfile"),
        ("ravendb://host/shop?prefix=Shop", "ignores case"),
        ("ravendb://host/shop?prefix=a/b", "option prefix"),
        ("ravendb://host/shop?prefix=", "option prefix"),
        ("ravendb://host/shop?timeout=x", "timeout"),
        ("ravendb://host/shop?node=A", "node"),
    ],
)
def test_a_wrong_url_is_a_setup_error(url: str, reason: str) -> None:
    with pytest.raises(SetupError) as refused:
        read_address(url)
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_client_shows_its_certificate_and_checks_the_servers(certificates: Certificates) -> None:
    """A server that wants one gets it; one that is signed by others is not trusted, and nothing is sent to it."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates.server, certificates.server_key)
    serving.load_verify_locations(certificates.authority)
    serving.verify_mode = ssl.CERT_REQUIRED
    mine = f"certfile={certificates.client}&keyfile={certificates.client_key}"
    async with scripted(lambda _: Reply(404), tls=serving) as (port, asked):
        place = f"ravendb+tls://{NAME}:{port}/shop"
        async with open_documents(f"{place}?cafile={certificates.authority}&{mine}", clock=ManualClock()) as documents:
            assert await documents.load(["k"]) == {}
        async with open_documents(f"{place}?verify=false&{mine}", clock=ManualClock()) as documents:
            assert await documents.load(["k"]) == {}
        assert len(asked) == 2
        for options in (f"cafile={certificates.other}&{mine}", mine, f"cafile={certificates.authority}"):
            async with open_documents(f"{place}?{options}", clock=ManualClock()) as documents:
                with pytest.raises(CommitFailed):
                    await documents.load(["k"])
        assert len(asked) == 2


async def test_a_file_that_cannot_be_read_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="Correct cafile, certfile or keyfile"):
        async with open_documents(f"ravendb+tls://host/shop?cafile={tmp_path}/none.pem", clock=ManualClock()):
            pass
