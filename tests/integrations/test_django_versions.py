"""The tests of Django with its other versions, each on SQLite, PostgreSQL and MariaDB. Those of one version run everywhere."""

import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.again import Run, read_report
from tests.django_project import VERSION, check_version
from tests.integrations.django_versions import DATABASES, FILES, LEAST, LEFT_OUT, ONCE, VERSIONS, by_database, check, run_on
from tests.servers.available import MARIADB, MEASURED, POSTGRESQL, need

ENOUGH = [f"test_a[{database}]" for database in DATABASES for _ in range(LEAST)]


@pytest.mark.slow
@pytest.mark.longest
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [VERSIONS[0], *(pytest.param(each, marks=pytest.mark.repeated) for each in VERSIONS[1:])])
def test_everything_works_with_each_version(version: str, tmp_path: Path) -> None:
    """On each database: transactions, keys, views, migrations, checks, the admin and the guide.

    CI has the oldest version here, and the newest in all other tests.
    """
    for server in (POSTGRESQL, MARIADB):
        need(server)
    started = time.monotonic()
    found = run_on(version, tmp_path / "report.xml")
    check(found)
    cells = ", ".join(f"{count} on {database}" for database, count in by_database(found).items())
    MEASURED.append(f"Django {version}: {found.count()} tests ({cells}) in {time.monotonic() - started:.0f} s")


def test_each_file_of_djangos_tests_is_in_the_matrix() -> None:
    """A new one is added to `FILES`, or to `ONCE`."""
    there = {str(each.relative_to(ROOT)) for each in ROOT.glob("tests/integrations/test_django*.py")}
    assert there == {each for each in (*FILES, *ONCE) if "/integrations/" in each}
    texts = "".join((ROOT / each).read_text() for each in FILES)
    assert [each for each in LEFT_OUT if f"def {each}(" not in texts] == []


def test_a_run_that_tested_too_little_fails(tmp_path: Path) -> None:
    """Control: nothing, one database less, and too few tests."""
    check(Run(ENOUGH, ""))
    report = tmp_path / "report.xml"
    cases = '<testcase name="test_a[sqlite]"/><testcase name="test_b[mariadb-x]"><skipped/></testcase><testcase name="test_c"/>'
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    found = read_report(report, "")
    assert (found.passed, by_database(found)) == (["test_a[sqlite]", "test_c"], {"sqlite": 1})
    without = [each for each in ENOUGH if "mariadb" not in each]
    for wrong in (found, Run(ENOUGH[: LEAST - 1], ""), Run(without, "")):
        with pytest.raises(AssertionError, match="fewer than"):
            check(wrong)


def test_tests_notice_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a path that leads to another Django than the one that was asked for."""
    monkeypatch.delenv(VERSION, raising=False)
    check_version()
    monkeypatch.setenv(VERSION, "4.2.0")
    with pytest.raises(RuntimeError, match=r"not with Django 4\.2\.0"):
        check_version()
