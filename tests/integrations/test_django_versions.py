"""The tests of Django with its other versions, each on SQLite, PostgreSQL and MariaDB. Those of one version run everywhere."""

import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.django_project import VERSION, check_version
from tests.integrations.django_versions import FILES, LEAST, LEFT_OUT, ONCE, VERSIONS, Outcome, outcome, run_on
from tests.servers.available import MARIADB, MEASURED, POSTGRESQL, need

ENOUGH = {"sqlite": LEAST, "postgresql": LEAST, "mariadb": LEAST}


@pytest.mark.slow
@pytest.mark.longest
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_everything_works_with_each_version(version: str, tmp_path: Path) -> None:
    """On each database: transactions, keys, views, migrations, checks, the admin and the guide."""
    for server in (POSTGRESQL, MARIADB):
        need(server)
    started = time.monotonic()
    found = run_on(version, tmp_path / "report.xml")
    found.check()
    cells = ", ".join(f"{count} on {database}" for database, count in found.passed.items())
    MEASURED.append(f"Django {version}: {found.total} tests ({cells}) in {time.monotonic() - started:.0f} s")


def test_each_file_of_djangos_tests_is_in_the_matrix() -> None:
    """A new one is added to `FILES`, or to `ONCE`."""
    there = {str(each.relative_to(ROOT)) for each in ROOT.glob("tests/integrations/test_django*.py")}
    assert there == {each for each in (*FILES, *ONCE) if "/integrations/" in each}
    texts = "".join((ROOT / each).read_text() for each in FILES)
    assert [each for each in LEFT_OUT if f"def {each}(" not in texts] == []


def test_a_run_that_tested_too_little_fails(tmp_path: Path) -> None:
    """Control: nothing, one database less, and too few tests."""
    Outcome(ENOUGH, LEAST, "").check()
    report = tmp_path / "report.xml"
    cases = '<testcase name="test_a[sqlite]"/><testcase name="test_b[mariadb-x]"><skipped/></testcase><testcase name="test_c"/>'
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    found = outcome(report, "")
    assert (found.passed, found.total) == ({"sqlite": 1}, 2)
    for wrong in (found, Outcome(ENOUGH, LEAST - 1, ""), Outcome({**ENOUGH, "mariadb": 0}, LEAST, "")):
        with pytest.raises(AssertionError, match="fewer than"):
            wrong.check()


def test_tests_notice_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a path that leads to another Django than the one that was asked for."""
    monkeypatch.delenv(VERSION, raising=False)
    check_version()
    monkeypatch.setenv(VERSION, "4.2.0")
    with pytest.raises(RuntimeError, match=r"not with Django 4\.2\.0"):
        check_version()
