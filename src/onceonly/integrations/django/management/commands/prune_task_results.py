"""`manage.py prune_task_results`: delete the results of tasks that ended long ago."""

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from onceonly.integrations.django.models import TaskResult

DAYS = 14
AT_ONCE = 1000
"""Rows that one statement deletes."""


class Command(BaseCommand):
    """Deletes in short transactions. Tasks that have not run are kept."""

    help = "Delete the results of tasks that ended long ago. Tasks that have not run are kept."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the age, and the database."""
        text = f"Age of a result since the end of its task [default: {DAYS}]."
        parser.add_argument("--min-age-days", type=float, default=DAYS, metavar="DAYS", help=text)
        parser.add_argument("--database", metavar="ALIAS", help="Database to delete from [default: those of all endpoints].")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Delete, and report the number."""
        from onceonly.integrations.django.admin_reading import aliases  # noqa: PLC0415 - it imports the project's endpoints

        before = timezone.now() - timedelta(days=options["min_age_days"])
        for alias in [options["database"]] if options["database"] else aliases():
            rows = TaskResult.objects.using(alias)
            old = rows.filter(finished_at__lte=before).order_by("finished_at")
            deleted = 0
            while keys := list(old.values_list("pk", flat=True)[:AT_ONCE]):
                deleted += rows.filter(pk__in=keys).delete()[0]
            if options["verbosity"]:
                self.stdout.write(f"Deleted {deleted} task results from database {alias!r}.")
