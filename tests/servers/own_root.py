"""A system of its own to install servers in: Debian's files, and a network, processes and mounts that are apart.

It is what a new machine or container is to `make servers`. All that runs in it ends with it.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests import ROOT
from tests.servers.available import Server, gone, want
from tests.servers.debian import DEBOOTSTRAP, program
from tests.servers.debian_roots import package_sources

OWN_ROOT = Server("a root of its own", "ONCEONLY_DEBOOTSTRAP", "unshare")
INCLUDED = ("iproute2", "make", "procps", "python3")
"""In addition to Debian's smallest set of packages: what `make servers` needs, and `ip` and `ps`, with which tests look."""

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# The process with number 1 in it. Mounts in a namespace of their own are gone with it.
_HOLD = """
set -e
root=$1
shift
mount --types proc proc "$root/proc"
mkdir -p "$root/dev/shm"
mount --types tmpfs tmpfs "$root/dev/shm"
for place in "$@"; do
    mkdir -p "$root$place"
    mount --bind "$place" "$root$place"
    mount --options remount,bind,ro "$root$place"
done
chroot "$root" ip link set lo up
echo ready
exec chroot "$root" sh -c 'while :; do sleep 3600 & wait; done'  # waits for orphans, too, as number 1 has to
"""


class Mirror(NamedTuple):
    """Where apt of this machine gets its packages, and of which release."""

    address: str
    release: str


def mirror() -> Mirror:
    """Return the first one of this machine's own distribution. Skips the test, or fails it with CI=true, if there is none."""
    release = next(
        (line.partition("=")[2].strip('"') for line in _lines("/etc/os-release") if line.startswith("VERSION_CODENAME=")), ""
    )
    if shutil.which("apt-get") is None:
        raise gone(OWN_ROOT, "there is no apt-get: this test needs Debian or Ubuntu")
    found = package_sources(f"Codename: {release}", "Component: main")
    if not found:
        raise gone(OWN_ROOT, f"apt has no list of packages of {release!r}: run `apt-get update`")
    return Mirror(found[0], release)


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


class OwnRoot:
    """A folder with Debian in it. Its commands run with this machine's network, or within a network of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first = 0
        """The process with number 1 in it, as this machine counts; 0 while it is not apart."""

    def make(self, source: Mirror) -> None:
        """Unpack Debian's smallest set of packages. Raises AssertionError with what debootstrap printed."""
        command = [
            program(DEBOOTSTRAP),
            "--variant=minbase",
            f"--include={','.join(INCLUDED)}",
            source.release,
            str(self.folder),
        ]
        done = subprocess.run(
            [*command, source.address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        shutil.copy("/etc/resolv.conf", self.folder / "etc")
        (self.folder / "etc/hosts").write_text("127.0.0.1 localhost\n")
        settings = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout.splitlines()
        kept = [line for line in settings if line.startswith(("Acquire::Check-", "Acquire::http::", "Acquire::https::"))]
        (self.folder / "etc/apt/apt.conf.d/99-of-the-machine").write_text("\n".join([*kept, ""]))

    def download(self, packages: Sequence[str]) -> None:
        """Download packages and what they need, with the network of this machine."""
        for words in (["update"], ["install", "--yes", "--download-only", "--no-install-recommends", *packages]):
            self.run("apt-get", "--quiet", *words)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Give it a network of its own, with nothing but its loopback interface, and this project as files to read."""
        # The interpreter of these tests belongs to them, if it is not the system's.
        places = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
        places = {place for place in places if not place.is_relative_to("/usr")}
        own = ["unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
        command = [*own, "sh", "-c", _HOLD, "sh", str(self.folder), *map(str, sorted(places))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as holder:
            assert holder.stdout is not None
            assert (line := holder.stdout.readline()) == "ready\n", line
            self._first = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text())
            try:
                yield
            finally:
                os.kill(self._first, signal.SIGKILL)  # all others there are killed before it has ended
                self._first = 0

    def run(self, *command: str, where: str = "/", environment: Mapping[str, str] | None = None) -> str:
        """Run a command in it, and return what it printed. Raises AssertionError if it fails."""
        within = ["nsenter", f"--target={self._first}", "--net", "--mount", "--pid", "--ipc"] if self._first else []
        given = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(environment or {})}
        words = [f"{name}={value}" for name, value in given.items()]
        started = [*within, "chroot", str(self.folder), "env", "--ignore-environment", f"--chdir={where}", *words, *command]
        done = subprocess.run(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{command} failed with {done.returncode}:\n{done.stdout}")
        return done.stdout


@contextmanager
def own_root(folder: Path, source: Mirror) -> Iterator[OwnRoot]:
    """Make a root in a folder, and delete it at the end. Skips the test, or fails it with CI=true, where that is impossible."""
    want(OWN_ROOT.name)
    if os.geteuid() != 0:
        raise gone(OWN_ROOT, "only root can make namespaces and unpack a Debian: run this test as root")
    missing = [name for name in ("chroot", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        raise gone(OWN_ROOT, f"{', '.join(missing)} cannot be found: install util-linux and coreutils")
    program(DEBOOTSTRAP)
    root = OwnRoot(folder / "root")
    try:
        root.make(source)
        yield root
    finally:
        shutil.rmtree(root.folder, ignore_errors=True)
