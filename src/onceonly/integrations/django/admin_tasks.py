"""The page of Django's admin for results of tasks. Nothing can be changed there."""

import json
import re
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from onceonly.integrations.django.admin_pages import AddressFilter, DatabaseFilter, ReadOnlyAdmin, alias_and_key, alias_of
from onceonly.integrations.django.models import TaskResult
from onceonly.model.escaping import escape
from onceonly.operations.previews import preview, shown_traceback

LISTED = 5000
"""Results that the list has: the newest."""
SHOWN_PATH = 200
STATUSES = ("READY", "FAILED", "SUCCESSFUL")
"""Those that can be seen. While a task runs, only its own transaction sees RUNNING."""
_ID = re.compile(r"[0-9a-f]{32}")


class StatusFilter(AddressFilter):
    """Chooses the status."""

    title = "status"
    parameter_name = "status"

    def choices_of(self, _alias: str, request: Any) -> Iterable[tuple[str, str]]:
        return [(each, each.capitalize()) for each in STATUSES]


@admin.register(TaskResult)
class TaskResultAdmin(ReadOnlyAdmin):
    """The tasks that were enqueued, and what came of them."""

    list_display = ("path", "status", "enqueued_at", "finished_at")
    list_filter = (DatabaseFilter, StatusFilter)
    parameters = frozenset({"database", "status"})
    search_fields = ("task",)
    search_help_text = "A part of the path of a task, or a whole id."
    ordering = ("-id",)
    sortable_by = ()
    actions = None
    fields = (
        *("id", "path", "status", "queue_name", "backend", "arguments", "run_after", "enqueued_at", "started_at"),
        *("finished_at", "workers", "value", "failures"),
    )

    def get_queryset(self, request: Any) -> Any:
        """Return the newest results. It reads a limited number of rows."""
        rows = TaskResult.objects.using(alias_of(request)).defer("args", "kwargs", "return_value", "errors")
        term, status = request.GET.get("q", "").strip(), request.GET.get("status", "")
        if _ID.fullmatch(term):
            return rows.filter(id=term)
        if "\0" in term:
            return rows.none()
        oldest = rows.order_by("-id").values_list("id", flat=True)[LISTED - 1 : LISTED].first()
        rows = rows.filter(id__gte=oldest) if oldest else rows
        rows = rows.filter(status=status) if status in STATUSES else rows
        return rows.filter(task__icontains=term) if term else rows

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> TaskResult | None:
        """Return a result by its id, in the database that the address names."""
        alias, key = alias_and_key(object_id)
        if not alias or not _ID.fullmatch(key):
            return None
        found: TaskResult | None = TaskResult.objects.using(alias).filter(id=key).first()
        return found

    @admin.display(description="task")
    def path(self, row: TaskResult) -> str:
        """Show the path of the task."""
        return escape(row.task[:SHOWN_PATH], multiline=False)

    @admin.display(description="arguments")
    def arguments(self, row: TaskResult) -> SafeString:
        """Show at most 64 kB of them."""
        return _json({"args": row.args, "kwargs": row.kwargs})

    @admin.display(description="workers")
    def workers(self, row: TaskResult) -> str:
        """Show the worker of each attempt."""
        return ", ".join(escape(each, multiline=False) for each in row.worker_ids) or "-"

    @admin.display(description="return value")
    def value(self, row: TaskResult) -> SafeString | str:
        """Show at most 64 kB of it."""
        return _json(row.return_value) if row.status == "SUCCESSFUL" else "-"

    @admin.display(description="errors")
    def failures(self, row: TaskResult) -> SafeString | str:
        """Show the exception of a task that failed."""
        parts = ((escape(each["exception_class_path"]), _block(shown_traceback(each["traceback"])[0])) for each in row.errors)
        return format_html_join("", "<div>{}</div>{}", parts) or "-"


def _json(value: Any) -> SafeString:
    return _block(preview(json.dumps(value).encode()).text)


def _block(text: str) -> SafeString:
    return format_html('<pre class="onceonly-text" tabindex="0">{}</pre>', escape(text))
