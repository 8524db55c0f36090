"""Programs of other releases of Debian, each in a folder of its own from which it is run by `chroot`.

apt resolves and downloads the packages from the mirror that this machine is configured with, by a configuration of its own, so
that nothing on the machine is changed. They are unpacked without their scripts: what those would have made, such as users, a
caller makes. Versions are pinned. A mirror that has gone on to another version is a loud skip, and with CI=true a failure.

ONCEONLY_DEBIAN_ROOTS names another directory for the folders, which is the environment of the tests otherwise.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zlib import crc32

from tests.servers.available import Server, gone, want

VARIABLE = "ONCEONLY_DEBIAN_ROOTS"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_DOWNLOAD_SECONDS = 240

# Debian signs the list of a moving suite for some days, and a mirror may be older. Its signature is checked all the same.
_SOURCE = "deb [signed-by={keyring} check-valid-until=no] {mirror} {suite} main\n"
_CONFIGURATION = """
Dir::Etc "{work}/etc";
Dir::Etc::sourceparts "{work}/etc/none";
Dir::State "{work}/state";
Dir::State::status "{work}/status";
Dir::Cache "{work}/cache";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "30";
"""
_UNPACK = 'set -e; for each in "$1"/*.deb; do dpkg-deb --fsys-tarfile "$each" | tar -x --keep-directory-symlink -C "$2"; done'
# What is mounted is seen by this process alone, and is gone with it. `exec` keeps the process id that the caller knows.
_ENTER = """
set -e
root=$1; shift
for each in proc dev sys tmp; do mount --rbind "/$each" "$root/$each"; done
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --rbind "$1" "$root$2"; shift 2; done
shift
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec chroot "$root" "$@"
"""


class Release(NamedTuple):
    """Packages of a suite of Debian with their versions, and the name under which their absence is reported."""

    name: str
    suite: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Return where they are unpacked. Other packages have another folder."""
        above = Path(os.environ.get(VARIABLE) or Path(sys.prefix, "debian"))
        return above / f"{self.name.lower().replace(' ', '-')}-{crc32(repr(self).encode()):08x}"


def root_of(release: Release) -> Path:
    """Return the folder with these packages, which are downloaded and unpacked if it is not there yet.

    Skips the test, or fails it with CI=true, where they cannot be had: without root, without apt, or with another version.
    """
    want(release.name)
    folder = release.folder
    if folder.is_dir():
        return folder
    lacking = [each for each in ("apt-get", "dpkg-deb", "tar", "chroot", "unshare") if shutil.which(each) is None]
    if lacking or os.geteuid() != 0:
        raise _absent(release, "this needs root" if not lacking else f"this needs {', '.join(lacking)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            try:
                _unpack(release, folder)
            except (OSError, subprocess.SubprocessError) as error:
                raise _absent(release, str(getattr(error, "stderr", None) or error)) from error
    return folder


def inside(root: Path, *command: str, mounts: Mapping[Path, str] | None = None) -> list[str]:
    """Return the command that runs another one inside a root, with `/proc`, `/dev`, `/sys` and `/tmp` of this machine.

    `mounts` are further directories, and where they are inside. The process that is started becomes the command, so that its
    id may be used to end it.
    """
    pairs = [word for outside, there in (mounts or {}).items() for word in (str(outside), there)]
    return ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root), *pairs, "--", *command]


def _absent(release: Release, reason: str) -> BaseException:
    return gone(Server(release.name, VARIABLE, ""), f"{release.name} of Debian {release.suite} cannot be had: {reason}")


def _unpack(release: Release, folder: Path) -> None:
    """Unpack into a new folder and rename it, so that nobody finds half of it."""
    with TemporaryDirectory(dir=folder.parent, prefix="unpacking-") as name:
        work = Path(name)
        whole = work / "whole"
        for each in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "proc", "sys", "tmp", "etc", "var/lib", "root"):
            (whole / each).mkdir(parents=True)
        for each in ("bin", "sbin", "lib", "lib64"):
            (whole / each).symlink_to(f"usr/{each}")
        _run("sh", "-c", _UNPACK, "sh", str(_download(release, work)), str(whole))
        for each in ("passwd", "group", "hosts", "resolv.conf"):
            shutil.copy(f"/etc/{each}", whole / "etc" / each)
        whole.rename(folder)


def _download(release: Release, work: Path) -> Path:
    """Download the packages and all that they need; gives the directory with the files."""
    for each in ("etc/none", "etc/preferences.d", "etc/apt.conf.d", "state/lists/partial", "cache/archives/partial"):
        (work / each).mkdir(parents=True)
    (work / "status").touch()
    source = _SOURCE.format(keyring=_KEYRING, mirror=_mirror(), suite=release.suite)
    (work / "etc" / "sources.list").write_text(source)
    configuration = work / "apt.conf"
    configuration.write_text(_CONFIGURATION.format(work=work))
    environment = {**os.environ, "APT_CONFIG": str(configuration), "DEBIAN_FRONTEND": "noninteractive"}
    _run("apt-get", "--quiet", "update", environment=environment)
    install = ("apt-get", "--quiet", "--yes", "--download-only", "install", *release.packages)
    _run(*install, environment=environment)
    return work / "cache" / "archives"


def _mirror() -> str:
    """Return the mirror of Debian that apt is configured with. Raises OSError if there is none."""
    found = package_sources("Origin: Debian")
    if not found:  # before the first update, apt knows no target's origin
        _run("apt-get", "--quiet", "update")
        found = package_sources("Origin: Debian")
    mirrors = [each for each in found if "security" not in each]
    if not mirrors:
        raise OSError("apt has no mirror of Debian")
    return mirrors[0]


def package_sources(*filters: str) -> list[str]:
    """Return the addresses from which apt has lists of packages, such as those with `Origin: Debian`."""
    return _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", *filters).split()


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=_DOWNLOAD_SECONDS,
    )
    return done.stdout
