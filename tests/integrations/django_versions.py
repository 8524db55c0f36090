"""The tests of Django, run again with another version of it, in a process of its own.

Each version is installed once, without dependencies, into a folder in the environment of the tests. In its run, that folder is
the first of the path. ONCEONLY_DJANGO_VERSIONS names another directory that contains `django-4.2.30` and the others. A version
that cannot be installed is a loud skip, and with CI=true a failure.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.again import Run, run_again
from tests.django_project import VERSION
from tests.servers.available import Server, gone, want

VERSIONS = ("4.2.30", "5.1.15")
"""The newest of each series, besides the version in constraints.txt, which all other tests use."""
FILES = (
    "tests/integrations/test_django.py",
    "tests/integrations/test_django_admin.py",
    "tests/integrations/test_django_handlers.py",
    "tests/integrations/test_django_project.py",
    "tests/integrations/test_django_tasks.py",
    "tests/integrations/test_django_tenants.py",
    "tests/integrations/test_django_views.py",
    "tests/docs/test_django_guide.py",
)
"""The files that each version runs."""
ONCE = (
    "tests/integrations/test_django_admin_pages.py",
    "tests/integrations/test_django_admin_tasks.py",
    "tests/integrations/test_django_celery.py",
    "tests/integrations/test_django_celery_workers.py",
    "tests/integrations/test_django_tasks_units.py",
    "tests/integrations/test_django_tasks_worker.py",
    "tests/integrations/test_django_versions.py",
)
"""Files for which one version is enough: pages in a browser, tasks under crashes and in workers, the tests of this module."""
LEFT_OUT = (
    "test_a_project_from_migrate_to_zero",
    "test_hostile_letters_are_only_text",
    "test_a_crash_at_any_point_leaves_one_row",
    "test_a_handler_whose_time_is_over_is_undone",
)
"""Tests in `FILES` that take long, and depend little on Django: of the command line, templates, crashes and time limits."""
DATABASES = ("sqlite", "postgresql", "mariadb")
LEAST, LEAST_ON_EACH = 400, 90
"""The fewest tests that must pass with a version, and on each database."""
VARIABLE = "ONCEONLY_DJANGO_VERSIONS"


def by_database(run: Run) -> Counter[str]:
    """Count the tests that passed on each database."""
    return Counter(database for name in run.passed for database in DATABASES if f"[{database}" in name)


def check(run: Run) -> None:
    """Check that enough tests passed, and enough on every database. Raises AssertionError."""
    run.check(LEAST)
    found = by_database(run)
    few = {name: found[name] for name in DATABASES if found[name] < LEAST_ON_EACH}
    assert not few, f"fewer than {LEAST_ON_EACH} tests passed on {few}\n{run.output}"


def folder_of(version: str) -> Path:
    """Return the folder of a version, which is installed if it is not there yet. Skips the test, or fails it with CI=true."""
    want(f"Django {version}")
    above = Path(os.environ.get(VARIABLE) or sys.prefix)
    folder = above / f"django-{version}"
    if not (folder / "django").is_dir():
        try:
            _install(version, above, folder)
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", None) or error
            reason = f"Django {version} cannot be installed into {folder}, see {VARIABLE}: {told}"
            raise gone(Server(f"Django {version}", VARIABLE, ""), reason) from error
    return folder


def _install(version: str, above: Path, folder: Path) -> None:
    """Install into a new folder and rename it, so that nobody finds half of a version."""
    with TemporaryDirectory(dir=above, prefix="django-") as name:
        whole = Path(name, "whole")
        options = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--target", str(whole))
        command = [sys.executable, "-m", "pip", "install", *options, f"django=={version}"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise


def run_on(version: str, report: Path) -> Run:
    """Run the tests with a version. Raises AssertionError, with all that was printed, if one has failed."""
    path = os.pathsep.join([str(folder_of(version)), *filter(None, [os.environ.get("PYTHONPATH")])])
    chosen = " and ".join(f"not {name}" for name in LEFT_OUT)
    return run_again(FILES, report, "-k", chosen, environment={VERSION: version, "PYTHONPATH": path})
