"""The distributions of this repository: built, installed from files into an environment without them, and started."""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
DISTRIBUTIONS = [ROOT, *PACKAGES]
PLUGINS = {"dashboard": "onceonly-dashboard", "demo": "onceonly-demo", "verify": "onceonly-verify"}
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache", "packages", "tests")


def project(folder: Path) -> dict[str, object]:
    """Return the table `project` of a distribution."""
    read: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read


def test_all_distributions_have_one_version() -> None:
    """Each needs exactly the library that it was built with."""
    version = project(ROOT)["version"]
    assert len(PACKAGES) >= len(PLUGINS)
    for folder in PACKAGES:
        described = project(folder)
        needs = described["dependencies"]
        assert isinstance(needs, list)
        assert described["version"] == version, folder.name
        assert f"onceonly=={version}" in needs, folder.name
        assert not [each for each in needs if each.startswith("onceonly") and not each.endswith(f"=={version}")], folder.name


def run(*command: str | Path, cwd: Path | None = None, expected: int = 0) -> str:
    """Run a command, and return what it printed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def wheel_of(folder: Path, temporary: Path) -> Path:
    """Build the source distribution, and a wheel from nothing but that."""
    copied = temporary / f"source-{folder.name}"  # the build writes into its source
    shutil.copytree(folder, copied, ignore=LEFT_OUT)
    files = temporary / f"files-{folder.name}"
    files.mkdir()
    run(sys.executable, "-c", f"from setuptools.build_meta import build_sdist; build_sdist({str(files)!r})", cwd=copied)
    (archive,) = files.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", files, archive)
    (wheel,) = files.glob("*.whl")
    return wheel


def clean_environment(folder: Path) -> Path:
    """Make an environment with what is installed here but this project, and return its `bin`."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.lower().startswith(("onceonly", "__editable__", "__pycache__")):
            (site / each.name).symlink_to(each)
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_distribution_works_from_its_files(tmp_path: Path) -> None:
    """The library alone first: its commands of other distributions name the line that installs them."""
    wheels = {folder.name: wheel_of(folder, tmp_path) for folder in DISTRIBUTIONS}
    library, *others = (wheels[folder.name] for folder in DISTRIBUTIONS)
    executables = clean_environment(tmp_path / "environment")
    python = executables / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
    ]
    run(*pip, library)
    command = executables / "onceonly"
    version = project(ROOT)["version"]
    assert run(command, "--version").strip() == f"onceonly {version}"
    listed = run(command, "--help")
    for name, distribution in PLUGINS.items():
        assert name in listed
        assert f"pip install ./packages/{distribution}" in " ".join(run(command, name, expected=2).split())
    public = (
        "import onceonly, onceonly.testing; [getattr(onceonly, name) for name in onceonly.__all__]; print(onceonly.__file__)"
    )
    assert str(tmp_path) in run(python, "-c", public)
    run(*pip, *others)
    for folder in PACKAGES:
        module = folder.name.replace("-", "_")
        assert str(tmp_path) in run(python, "-c", f"import {module}; print({module}.__file__)")
    for name in PLUGINS:
        assert "Usage: onceonly" in run(command, name, "--help")
