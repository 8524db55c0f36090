"""The library runs with the lowest versions that it declares, and with the newest ones."""

import sys
from pathlib import Path
from time import monotonic

import pytest
from packaging.requirements import Requirement

from tests import ROOT
from tests.again import run_again
from tests.servers.available import MARIADB, MEASURED, NATS, POSTGRESQL, RABBITMQ, REDIS, need
from tests.versions.environments import PythonEnvironment, editable, made
from tests.versions.floors import TOOLS, UNPINNED, declared, differences, lowest, pinned
from tests.versions.selections import DRIVERS, NORMAL

LEAST = 2000
_OPTIONS = ("--numprocesses", "2", "--dist", "worksteal", "--timeout", "600")


def floors() -> PythonEnvironment:
    """Return the environment with the lowest versions. What those need in turn is the newest that fits."""
    pins = pinned()
    tools = [each if each in UNPINNED else f"{each}=={pins[each]}" for each in TOOLS]
    with_library = ["--no-deps", "--no-build-isolation", *editable()]
    return PythonEnvironment("floors", Path(sys.executable), [[*lowest(declared()), *tools], with_library])


def newest() -> PythonEnvironment:
    """Return the environment with the newest versions that pip found when it was made. `make newest` makes it again."""
    return PythonEnvironment("newest", Path(sys.executable), [["--upgrade", *editable("dev")]])


def run_drivers(environment: PythonEnvironment, report: Path) -> str:
    """Run the tests of all dependencies with an environment; gives the words for what was measured."""
    for server in (POSTGRESQL, MARIADB, RABBITMQ, REDIS, NATS):
        need(server)
    python = str(made(environment).python)
    began = monotonic()
    run = run_again(DRIVERS, report, *_OPTIONS, "-m", NORMAL, python=(python,), seconds=3000)
    run.check(LEAST)
    return f"{run.count()} tests in {monotonic() - began:.0f} s"


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.longest
@pytest.mark.timeout(5400)
def test_everything_works_with_the_lowest_versions(tmp_path: Path) -> None:
    """Drivers, frameworks and body libraries, each in the version that `pyproject.toml` begins with."""
    MEASURED.append(f"lowest versions: {run_drivers(floors(), tmp_path / 'report')}")


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.longest
@pytest.mark.timeout(5400)
def test_everything_works_with_the_newest_versions(tmp_path: Path) -> None:
    """Also those that constraints.txt does not have yet, which are named."""
    told = run_drivers(newest(), tmp_path / "report")
    packages = next(newest().folder.glob("lib/python3.*/site-packages"))
    found = differences(packages, pinned())
    MEASURED.append(f"newest versions: {told}; other than constraints.txt: {', '.join(found) or 'none'}")


def test_the_lowest_versions_are_those_that_are_declared() -> None:
    """One for each distribution, also where an upper limit stands beside it."""
    given = [Requirement(each) for each in ("a[x]>=1.2", "B-b>=3,<4", "b_b>=3,<4; platform_system != 'Windows'")]
    assert lowest(given) == ["a[x]==1.2", "b-b==3"]
    for wrong in (["a"], ["a==1"], ["a>=1", "a>=2"], ["a>=1,>=2"]):
        with pytest.raises(ValueError, match="lowest version"):
            lowest(map(Requirement, wrong))


def test_all_that_the_library_needs_has_a_lowest_version() -> None:
    """Extras of its own, tools and benchmarks are not what it needs."""
    pins = lowest(declared())
    names = {each.partition("=")[0] for each in pins}
    assert {"asyncpg", "sqlalchemy[asyncio]", "pymongo", "celery", "uvloop"} <= names
    assert names.isdisjoint({"onceonly", "mypy", "dbos"})


def test_a_pin_is_for_a_version_of_python(tmp_path: Path) -> None:
    """A line with a condition is left out where it does not hold."""
    path = tmp_path / "constraints.txt"
    path.write_text("# a comment\nA_b==1.0\nc==1; python_version < '3'\nc==2; python_version >= '3'\n")
    assert pinned(path) == {"a-b": "1.0", "c": "2"}


def test_differences_are_named(tmp_path: Path) -> None:
    """With both versions."""
    for name, version in (("Some_Thing", "2.0"), ("other", "1.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert differences(tmp_path, {"some-thing": "1.9", "other": "1.0", "absent": "1"}) == ["some-thing 1.9 -> 2.0"]


def test_the_files_that_run_are_there() -> None:
    """A file that was renamed would not be run."""
    assert [each for each in DRIVERS if not (ROOT / each).exists()] == []
    assert set(TOOLS) <= {*pinned(), "setuptools"}
    assert set(UNPINNED) < set(TOOLS)
