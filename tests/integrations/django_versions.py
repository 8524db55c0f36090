"""The tests of Django, run again with another version of it, in a process of its own.

Each version is installed once, without dependencies, into a folder in the environment of the tests. In its run, that folder is
the first of the path. ONCEONLY_DJANGO_VERSIONS names another directory that contains `django-4.2.30` and the others. A version
that cannot be installed is a loud skip, and with CI=true a failure.
"""

import os
from collections import Counter
from pathlib import Path

from tests.again import Run, run_again
from tests.apart import folder_with
from tests.django_project import VERSION

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
    named = os.environ.get(VARIABLE)
    return folder_with(f"django=={version}", f"django-{version}", above=Path(named) if named else None, variable=VARIABLE)


def run_on(version: str, report: Path) -> Run:
    """Run the tests with a version. Raises AssertionError, with all that was printed, if one has failed."""
    path = os.pathsep.join([str(folder_of(version)), *filter(None, [os.environ.get("PYTHONPATH")])])
    chosen = " and ".join(f"not {name}" for name in LEFT_OUT)
    return run_again(FILES, report, "-k", chosen, environment={VERSION: version, "PYTHONPATH": path})
