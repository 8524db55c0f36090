"""A RavenDB server of the tests: 4.1.0 of 2018, which can be installed without a container. ONCEONLY_RAVENDB names another one.

It needs .NET Core 2.1 and OpenSSL 1.1, both out of support, so it listens on loopback only. They are installed once, below
.venv: the server and the runtime from Python packages, OpenSSL from Debian's release of 2021, without changing this machine.
Where that is not possible its tests are skipped, loudly; with CI=true they fail. Later versions of the server need a runtime
that no package has.
"""

import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests import ROOT
from tests.servers.available import MISSING, Server, free_port, gone, want
from tests.servers.emulators import Running

RAVENDB = Server("RavenDB 4.1", "ONCEONLY_RAVENDB", "")
SERVER, RUNTIME = "pyravendb-embedded==4.1.1.4", "dotnetcore2==2.1.23"
OPENSSL, RELEASE = "libssl1.1=1.1.1w-0+deb11u1", "bullseye"
SECONDS_TO_INSTALL = 300
_FOLDER = ROOT / ".venv" / "emulators-ravendb"


class RavenDB:
    """A server of its own; `url` is without a database. It may be killed and started again, with its data."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.port = free_port()
        self.url = f"ravendb://127.0.0.1:{self.port}"
        self._running = Running(
            [
                str(programs / "runtime/dotnetcore2/bin/dotnet"),
                str(next(programs.glob("server/*/pyravendb_embedded/RavenDBServer/Raven.Server.dll"))),
                f"--ServerUrl=http://127.0.0.1:{self.port}",
                f"--DataDir={folder / 'data'}",
                f"--Logs.Path={folder / 'logs'}",
                "--Setup.Mode=None",
                "--License.Eula.Accepted=true",
                "--Security.UnsecuredAccessAllowed=Local",
                "--non-interactive",
            ],
            folder,
            {
                "LD_LIBRARY_PATH": str(next(programs.glob("openssl/usr/lib/*/libssl.so.1.1")).parent),
                "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",
                "DOTNET_CLI_TELEMETRY_OPTOUT": "1",
            },
        )

    def start(self) -> None:
        """Start it, and wait until it is ready: it listens some seconds earlier, and then answers with errors."""
        self._running.start(self._is_ready)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it: SIGKILL is a crash."""
        self._running.stop(number)

    def _is_ready(self) -> bool:
        try:
            urlopen(f"http://127.0.0.1:{self.port}/databases?name=none", timeout=2).close()
        except HTTPError as error:
            return error.code == HTTPStatus.NOT_FOUND
        except OSError:
            pass
        return False


@contextmanager
def own_ravendb() -> Iterator[RavenDB]:
    """Run a server in a folder of its own, removed at the end; a loud skip where it cannot be installed."""
    programs = _programs()
    with TemporaryDirectory(prefix="onceonly-ravendb-", ignore_cleanup_errors=True) as name:
        server = RavenDB(programs, Path(name))
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGKILL)


@contextmanager
def ravendb() -> Iterator[str]:
    """Run a server, unless ONCEONLY_RAVENDB names one; gives its URL, without a database."""
    if named := RAVENDB.url:
        yield named
        return
    with own_ravendb() as server:
        yield server.url


def remove_database(url: str) -> None:
    """Delete the database of a URL, with its files."""
    place, _, database = url.partition("?")[0].replace("ravendb", "http", 1).rpartition("/")
    body = f'{{"DatabaseNames":["{database}"],"HardDelete":true}}'.encode()
    request = Request(f"{place}/admin/databases", body, {"Content-Type": "application/json"}, method="DELETE")  # noqa: S310 - http
    urlopen(request, timeout=30).close()  # noqa: S310 - http


def _programs() -> Path:
    """Return the folder of the programs, installed where that is possible; skips or fails the test otherwise."""
    want(RAVENDB.name)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_FOLDER / "ready").exists():
            if RAVENDB in MISSING:
                raise gone(RAVENDB, "RavenDB could not be installed")
            if problem := _install(_FOLDER):
                raise gone(RAVENDB, f"RavenDB cannot be installed: {problem}; or set {RAVENDB.variable}")
    return _FOLDER


def _install(folder: Path) -> str:
    """Install the server, its runtime and OpenSSL; returns what went wrong, empty if nothing did."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "its runtime is for Linux on x86-64"
    if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} of Debian are missing"
    packages = folder / "packages"
    try:
        _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", packages, SERVER, RUNTIME)
        with tarfile.open(next(packages.glob("pyravendb*.tar.gz"))) as archive:
            archive.extractall(folder / "server", filter="data")
        with zipfile.ZipFile(next(packages.glob("dotnetcore2*.whl"))) as wheel:
            wheel.extractall(folder / "runtime")  # noqa: S202 - pinned
        (folder / "runtime/dotnetcore2/bin/dotnet").chmod(0o755)
        _run("dpkg-deb", "--extract", _openssl(folder / "apt"), folder / "openssl")
    except (OSError, StopIteration, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        return f"{type(error).__name__}: {error} {said.decode(errors='replace')[-500:]}"
    (folder / "ready").touch()
    return ""


def _openssl(folder: Path) -> Path:
    """Download a package of an earlier Debian, from where this machine gets its own; apt's settings stay as they are."""
    for name in ("lists/partial", "archives/partial", "state"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    found = _run("apt-get", "indextargets", "--format", "$(ORIGIN) $(SITE)", "Created-By: Packages").split("\n")
    site = next(line.removeprefix("Debian ") for line in found if line.startswith("Debian ") and "security" not in line)
    (folder / "sources.list").write_text(f"deb [check-valid-until=no] {site} {RELEASE} main\n")
    (folder / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list"; Dir::Etc::sourceparts "-"; Dir::State "{folder}/state";\n'
        f'Dir::State::lists "{folder}/lists"; Dir::State::status "{folder}/status"; Dir::Cache "{folder}";\n'
        'Acquire::Languages "none"; Acquire::Retries "0"; Acquire::http::Timeout "20"; APT::Sandbox::User "";\n'
    )
    settings = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    _run("apt-get", "--quiet", "update", environment=settings)
    _run("apt-get", "--quiet", "download", OPENSSL, environment=settings, cwd=folder / "archives")
    return next((folder / "archives").glob("libssl1.1*.deb"))


def _run(*command: object, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)], check=True, capture_output=True, timeout=SECONDS_TO_INSTALL, env=environment, cwd=cwd
    )
    return done.stdout.decode()
