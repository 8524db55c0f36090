"""TLS by the options of the URL, with both drivers. PgBouncer is the server of these tests: it takes TLS and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from onceonly.model.errors import RetryableError, SetupError
from onceonly.sql.store import SqlStore
from tests.servers.certificates import NAME, Certificates, make_certificates
from tests.servers.pgbouncer import pgbouncer
from tests.sql.harness import add, look, message, opened, records

SERVER = (
    "client_tls_sslmode={mode}\nclient_tls_cert_file={server}\nclient_tls_key_file={server_key}\nclient_tls_ca_file={authority}"
)


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    """Make them where PgBouncer may read them, which does not run as root."""
    with TemporaryDirectory(prefix="onceonly-tls-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield make_certificates(directory)


@pytest.fixture(scope="module")
def secure(postgresql_url: str, certificates: Certificates) -> Iterator[str]:
    """Run a server that takes no connection without TLS."""
    with pgbouncer(postgresql_url, more=SERVER.format(mode="require", **certificates._asdict())) as through:
        yield through


@pytest.fixture(scope="module")
def mutual(postgresql_url: str, certificates: Certificates) -> Iterator[str]:
    """Run a server that also wants a certificate of its clients."""
    with pgbouncer(postgresql_url, more=SERVER.format(mode="verify-full", **certificates._asdict())) as through:
        yield through


def by_name(through: str, url: str, options: str, *, host: str = NAME) -> str:
    """Name the database through PgBouncer with the driver of `url`, and with these options."""
    place = make_url(through).set(drivername=make_url(url).drivername, host=host)
    return f"{place.render_as_string(hide_password=False)}?{options}"


async def reached(url: str) -> int:
    """Read from the database."""
    async with opened(url) as database, database.reading() as connection:
        return int(await connection.scalar(text("SELECT 1")) or 0)


@pytest.mark.parametrize(
    "options", ["sslmode=require", "sslmode=verify-full&sslrootcert={authority}", "sslrootcert={authority}"]
)
@pytest.mark.usefixtures("database")
async def test_units_work_over_tls(url: str, secure: str, certificates: Certificates, options: str) -> None:
    """Also where the server's certificate and name are verified."""
    place = by_name(secure, url, options.format(**certificates._asdict()))
    async with opened(place) as far:
        await add(unit := await SqlStore(far, "shop").begin([message()]), "a")
        await unit.commit(records(message()))
        assert await look(SqlStore(far, "shop"), message()) == {"done": ["m1"]}


@pytest.mark.parametrize(
    "options",
    ["sslmode=disable", "sslmode=verify-ca&sslrootcert={other}", "sslrootcert={other}", "sslrootcert=system"],
)
async def test_a_connection_that_is_not_as_safe_as_wanted_is_not_made(
    url: str, secure: str, certificates: Certificates, options: str
) -> None:
    """No TLS at all, or a certificate of another authority. Each may be cured at the server."""
    with pytest.raises(RetryableError):
        await reached(by_name(secure, url, options.format(**certificates._asdict())))


async def test_another_name_is_allowed_if_only_the_authority_is_verified(
    url: str, secure: str, certificates: Certificates
) -> None:
    """This is what `verify-ca` is for."""
    own = f"sslrootcert={certificates.authority}"
    assert await reached(by_name(secure, url, f"sslmode=verify-ca&{own}", host="127.0.0.1")) == 1
    with pytest.raises(RetryableError):
        await reached(by_name(secure, url, own, host="127.0.0.1"))


async def test_the_authorities_of_this_machine_may_be_used(
    url: str, secure: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For servers with a certificate that every browser accepts, as those of some providers have."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    assert await reached(by_name(secure, url, "sslrootcert=system")) == 1


async def test_a_server_may_want_a_certificate(url: str, mutual: str, certificates: Certificates) -> None:
    """The client shows it, and is refused without it."""
    own = f"sslrootcert={certificates.authority}&sslcert={certificates.client}&sslkey={certificates.client_key}"
    certificates.client_key.chmod(0o600)  # libpq uses no key that others may read
    assert await reached(by_name(mutual, url, own)) == 1
    with pytest.raises(RetryableError):
        await reached(by_name(mutual, url, f"sslrootcert={certificates.authority}"))


async def test_a_file_that_is_not_there_is_a_setup_error(url: str, secure: str) -> None:
    """Trying again would not help."""
    with pytest.raises(SetupError, match=r"option sslrootcert='/nowhere\.pem': this file cannot be read \(No such file"):
        await reached(by_name(secure, url, "sslrootcert=/nowhere.pem"))
