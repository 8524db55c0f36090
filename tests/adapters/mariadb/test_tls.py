"""TLS by the options of the URL. The server of these tests takes no connection without it."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from onceonly.model.errors import RetryableError, SetupError
from tests.adapters.mariadb.harness import sockets_closed
from tests.servers.certificates import NAME, Certificates, make_certificates
from tests.servers.mariadb import own_mariadb
from tests.sql.harness import opened


class SecureServer(NamedTuple):
    """A server, and the certificates that it and its clients have."""

    url: str
    certificates: Certificates

    def by_name(self, options: str, *, host: str = NAME) -> str:
        """Name its database, with these options."""
        place = make_url(self.url).set(host=host).render_as_string(hide_password=False)
        return f"{place}?{options.format(**self.certificates._asdict())}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """Start it."""
    directory = tmp_path_factory.mktemp("tls")
    made = make_certificates(directory / "certificates")
    files = [f"--ssl-ca={made.authority}", f"--ssl-cert={made.server}", f"--ssl-key={made.server_key}"]
    with own_mariadb(directory, *files, "--require-secure-transport=ON") as url:
        yield SecureServer(url, made)


async def cipher(url: str) -> str:
    """Connect, and ask how the connection is encrypted; empty if it is not."""
    async with sockets_closed(), opened(url) as database, database.reading() as connection:
        found = (await connection.execute(text("SHOW STATUS LIKE 'Ssl_cipher'"))).one()
        return str(found[1])


@pytest.mark.parametrize(
    ("options", "host"),
    [
        ("ssl-mode=REQUIRED", NAME),
        ("ssl-mode=REQUIRED&ssl-ca={other}", NAME),
        ("ssl-mode=VERIFY_CA&ssl-ca={authority}", "127.0.0.1"),
        ("ssl-mode=VERIFY_IDENTITY&ssl-ca={authority}", NAME),
        ("ssl-ca={authority}", NAME),
        ("ssl-ca={authority}&ssl-cert={client}&ssl-key={client_key}", NAME),
    ],
)
async def test_a_connection_is_encrypted(server: SecureServer, options: str, host: str) -> None:
    """With as much verified as the mode says."""
    assert await cipher(server.by_name(options, host=host))


@pytest.mark.parametrize(
    ("options", "host"),
    [
        ("ssl-mode=VERIFY_CA", NAME),
        ("ssl-mode=VERIFY_CA&ssl-ca={other}", NAME),
        ("ssl-ca={authority}", "127.0.0.1"),
    ],
)
async def test_a_connection_that_is_not_as_safe_as_wanted_is_not_made(server: SecureServer, options: str, host: str) -> None:
    """A certificate of an unknown authority, of another one, and another name. Each may be cured at the server."""
    with pytest.raises(RetryableError):
        await cipher(server.by_name(options, host=host))


async def test_the_authorities_of_this_machine_may_be_used(server: SecureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what counts without a file."""
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificates.authority))
    assert await cipher(server.by_name("ssl-mode=VERIFY_IDENTITY"))


@pytest.mark.parametrize("options", ["", "ssl-mode=DISABLED"])
async def test_a_server_that_wants_tls_refuses_others(server: SecureServer, options: str) -> None:
    """It says the same as for a wrong password, so the error names both."""
    with pytest.raises(SetupError, match="rejected this user or password, or a connection without TLS"):
        await cipher(server.by_name(options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("ssl-ca=/nowhere.pem", r"option ssl-ca='/nowhere\.pem': this file cannot be read \(No such file"),
        ("ssl-ca={server_key}", "the files of ssl-ca cannot be used for TLS"),
        (
            "ssl-cert={client}&ssl-key={server_key}",
            r"the files of ssl-cert, ssl-key cannot be used for TLS \(KEY_VALUES_MISMATCH\)",
        ),
    ],
)
async def test_a_file_that_cannot_be_used_is_a_setup_error(server: SecureServer, options: str, words: str) -> None:
    """Trying again would not help."""
    with pytest.raises(SetupError, match=words):
        await cipher(server.by_name(options))
