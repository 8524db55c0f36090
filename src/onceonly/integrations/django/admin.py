"""Pages in Django's admin: dead letters, which can be retried and deleted, pending records, and endpoints."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Left
from django.http import HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.http import urlencode

from onceonly.integrations.django import admin_fields as shown
from onceonly.integrations.django import admin_reading as reading
from onceonly.integrations.django import admin_tasks  # noqa: F401 - it registers its page
from onceonly.integrations.django.admin_actions import ActionResult, perform
from onceonly.integrations.django.admin_pages import (
    AddressFilter,
    DatabaseFilter,
    ReadOnlyAdmin,
    alias_and_key,
    alias_of,
    database_query,
    id_of,
)
from onceonly.integrations.django.models import DeadLetter, EndpointStatus, PendingRecord
from onceonly.model.action import ActionKind
from onceonly.model.escaping import escape
from onceonly.model.wording import counted, in_words
from onceonly.sql.store.dead_letters import letter_in

AT_ONCE = 500
"""Dead letters that one action takes. Django refuses forms with more than 1,000 shown."""
MOST_KEPT = 10
"""Up to this number of kept letters are reported with their reasons."""
_DIGITS = re.compile(r"\d{1,18}")
_KEY = re.compile(r"[0-9a-f]{32}")
_DONE = {ActionKind.RETRY: "retried", ActionKind.DELETE: "deleted"}


class LetterEndpointFilter(AddressFilter):
    """Chooses the endpoint."""

    title = "endpoint"
    parameter_name = "endpoint"

    def choices_of(self, alias: str, request: Any) -> Iterable[tuple[str, str]]:
        return [(each, escape(each)) for each in reading.letter_endpoints(alias)]


class RecordEndpointFilter(LetterEndpointFilter):
    """Chooses the endpoint of pending records."""

    def choices_of(self, alias: str, request: Any) -> Iterable[tuple[str, str]]:
        return [(each, escape(each)) for each in reading.record_endpoints(alias)]


class TypeFilter(AddressFilter):
    """Chooses the type, of those that the newest letters have."""

    title = "type"
    parameter_name = "type"

    def choices_of(self, alias: str, request: Any) -> Iterable[tuple[str, str]]:
        found = _sample(request, alias).types
        return [(each, escape(each[: shown.SHOWN_NAME])) for each in found if each]


class ReasonFilter(AddressFilter):
    """Chooses the letters with the same failure, of those that the newest letters have. They are shown by a reason."""

    title = "reason"
    parameter_name = "failure"

    def choices_of(self, alias: str, request: Any) -> Iterable[tuple[str, str]]:
        found = _sample(request, alias).failures.items()
        return [
            (f"{endpoint}:{failure}", f"{endpoint}: {escape(reason, multiline=False)}") for (endpoint, failure), reason in found
        ]


class BeforeFilter(AddressFilter):
    """Begins the list behind a letter. It is a link below a list that has more."""

    title = "position"
    parameter_name = "before"

    def choices_of(self, _alias: str, request: Any) -> Iterable[tuple[str, str]]:
        return []


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """The messages that were given up."""

    list_display = ("short_key", "endpoint", "shown_type", "shown_reason", "stored")
    list_filter = (DatabaseFilter, LetterEndpointFilter, TypeFilter, ReasonFilter, BeforeFilter)
    parameters = frozenset({"database", "endpoint", "type", "failure", "before"})
    search_fields = ("reason",)
    search_help_text = "A part of the reason or the type, or a whole key."
    ordering = ("-position",)
    sortable_by = ("stored",)
    actions = ("retry_selected", "delete_selected")
    fields = (
        *("endpoint", "shown_type", "source", "message_id", "whole_key", "reason_text", "attempts", "stored"),
        *("body", "headers", "failures", "actions_taken"),
    )

    short_key = shown.short_key
    shown_type = shown.shown_type
    shown_reason = shown.shown_reason
    stored = shown.stored
    source = shown.source
    message_id = shown.message_id
    whole_key = shown.whole_key
    reason_text = shown.reason_text
    attempts = shown.attempts
    body = shown.body
    headers = shown.headers
    failures = shown.failures
    actions_taken = shown.actions_taken

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return bool(request.user.has_perm("onceonly.delete_deadletter"))

    def has_retry_permission(self, request: Any, obj: Any = None) -> bool:
        """Return whether the user has the permission `onceonly.retry_deadletter`."""
        return bool(request.user.has_perm("onceonly.retry_deadletter"))

    def get_urls(self) -> list[Any]:
        """Add the page that confirms a retry."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_retry"
        own = path("<path:object_id>/retry/", self.admin_site.admin_view(self.retry_view), name=name)
        return [own, *super().get_urls()]

    def get_queryset(self, request: Any) -> Any:
        """Return the letters of a list, without their bodies. It reads a limited number of rows."""
        alias, asked = alias_of(request), request.GET
        rows = DeadLetter.objects.using(alias).defer("letter", "reason")
        rows = rows.annotate(first_reason=Left("reason", shown.SHOWN_REASON + 1))
        term = asked.get("q", "").strip()
        if _KEY.fullmatch(term):
            return rows.filter(key=term)
        chosen = _choice(asked)
        if chosen is None or "\0" in term + asked.get("type", ""):
            return rows.none()
        request.onceonly_window = window = reading.find_letters(alias, chosen)
        if not window.positions:
            return rows.none()
        if chosen.endpoint:
            rows = rows.filter(position__in=window.positions)
        else:
            rows = rows.filter(position__gte=window.last, position__lte=window.positions[0])
        rows = rows.filter(type=asked["type"]) if asked.get("type") else rows
        return rows.filter(Q(reason__icontains=term) | Q(type__icontains=term)) if term else rows

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> DeadLetter | None:
        """Return a letter by its position, in the database that the address names. Its contents are `found`."""
        alias, position = alias_and_key(object_id)
        if not alias or not _DIGITS.fullmatch(position):
            return None
        row: DeadLetter | None = DeadLetter.objects.using(alias).filter(position=int(position)).first()
        if row is not None:
            row.found = letter_in(row)  # what the fields of the page show
        return row

    @admin.action(description="Retry selected dead letters", permissions=["retry"])
    def retry_selected(self, request: Any, queryset: Any) -> HttpResponse | None:
        """Confirm it, then retry."""
        return self._selected(request, queryset, ActionKind.RETRY)

    @admin.action(description="Delete selected dead letters", permissions=["delete"])
    def delete_selected(self, request: Any, queryset: Any) -> HttpResponse | None:
        """Confirm it, then delete."""
        return self._selected(request, queryset, ActionKind.DELETE)

    @transaction.non_atomic_requests
    def retry_view(self, request: Any, object_id: str) -> HttpResponse:
        """Confirm the retry of one letter, then retry it."""
        return self._one(request, object_id, ActionKind.RETRY, self.has_retry_permission(request))

    @transaction.non_atomic_requests
    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Confirm the deletion of one letter, then delete it."""
        return self._one(request, object_id, ActionKind.DELETE, self.has_delete_permission(request))

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show a letter."""
        able = {"Retry": self.has_retry_permission(request), "Delete": self.has_delete_permission(request)}
        tools = [(verb, self._address(verb.lower(), object_id)) for verb, is_allowed in able.items() if is_allowed]
        context = {**(extra_context or {}), "letter_tools": tools, "show_delete": False}
        return super().change_view(request, object_id, form_url, context)

    def _address(self, page: str, *arguments: str) -> str:
        return str(reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_{page}", args=arguments))

    def _selected(self, request: Any, queryset: Any, kind: ActionKind) -> HttpResponse | None:
        letters = list(queryset[: AT_ONCE + 1])
        if len(letters) > AT_ONCE:
            command = f"manage.py onceonly dead {'retry' if kind is ActionKind.RETRY else 'purge'}"
            text = f"Select at most {AT_ONCE} dead letters. For more, use `{command}`."
            self.message_user(request, text, messages.ERROR)
            return None
        if request.POST.get("confirmed"):
            self._perform(request, kind, letters)
            return None
        action = f"{'retry' if kind is ActionKind.RETRY else 'delete'}_selected"
        hidden = [("action", action), *((ACTION_CHECKBOX_NAME, str(each.pk)) for each in letters)]
        return self._confirm(request, kind, letters, hidden)

    def _one(self, request: Any, object_id: str, kind: ActionKind, is_allowed: bool) -> HttpResponse:  # noqa: FBT001 - of this class
        if not is_allowed:
            raise PermissionDenied
        letter = self.get_object(request, unquote(object_id))
        if letter is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not request.POST.get("confirmed"):
            return self._confirm(request, kind, [letter], [])
        self._perform(request, kind, [letter])
        return HttpResponseRedirect(f"{self._address('changelist')}{database_query(letter)}")

    def _confirm(
        self, request: Any, kind: ActionKind, letters: Sequence[DeadLetter], hidden: Sequence[tuple[str, str]]
    ) -> HttpResponse:
        verb = "Retry" if kind is ActionKind.RETRY else "Delete"
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb} {counted(len(letters), 'dead letter')}",
            "opts": self.opts,
            "media": self.media,
            "letters": [(each, id_of(each)) for each in letters],
            "verb": verb,
            "is_retry": kind is ActionKind.RETRY,
            "hidden": [*hidden, ("confirmed", uuid4().hex)],
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/onceonly/deadletter/confirm.html", context)

    def _perform(self, request: Any, kind: ActionKind, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        keys: dict[str, list[str]] = {}
        for letter in letters:
            keys.setdefault(letter.endpoint, []).append(letter.key)
        alias, form = letters[0]._state.db or "", request.POST.get("confirmed", "")[:64]  # noqa: SLF001 - documented
        for result in perform(kind, keys, alias=alias, user=request.user.get_username(), form=form):
            self._tell(request, kind, result)

    def _tell(self, request: Any, kind: ActionKind, result: ActionResult) -> None:
        if result.problem:
            self.message_user(request, escape(f"{result.endpoint}: {result.problem}"), messages.ERROR)
        if result.done:
            text = f"{counted(result.done, 'dead letter')} of {result.endpoint} {_DONE[kind]} (action {result.number})."
            self.message_user(request, text, messages.SUCCESS)
        for key, why in result.kept[:MOST_KEPT]:
            self.message_user(request, escape(f"{key} was not {_DONE[kind]}: {why}."), messages.WARNING)
        if len(result.kept) > MOST_KEPT:
            text = f"{len(result.kept) - MOST_KEPT} more were not {_DONE[kind]}."
            self.message_user(request, text, messages.WARNING)


@admin.register(PendingRecord)
class PendingRecordAdmin(ReadOnlyAdmin):
    """The records whose messages are not all sent. A relay sends them."""

    list_display = ("message_text", "endpoint", "source_text", "stored", "age")
    list_filter = (DatabaseFilter, RecordEndpointFilter)
    parameters = frozenset({"database", "endpoint"})
    ordering = ("stored_at",)
    sortable_by = ("stored",)
    fields = ("endpoint", "source_text", "message_text", "stored", "age", "effects_to_send")
    actions = None

    message_text = shown.record_message
    source_text = shown.record_source
    stored = shown.record_stored
    age = shown.record_age
    effects_to_send = shown.effects_to_send

    def get_queryset(self, request: Any) -> Any:
        """Return the oldest records of an endpoint, or of each."""
        alias, endpoint = alias_of(request), request.GET.get("endpoint", "")
        rows = PendingRecord.objects.using(alias).defer("effects")
        keys = () if "\0" in endpoint else reading.find_records(alias, endpoint)
        return rows.filter(key__in=keys) if keys else rows.none()

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> PendingRecord | None:
        """Return a record by its key, in the database that the address names."""
        alias, key = alias_and_key(object_id)
        if not alias or not _KEY.fullmatch(key):
            return None
        found: PendingRecord | None = PendingRecord.objects.using(alias).filter(key=key).first()
        return found


@admin.register(EndpointStatus)
class EndpointStatusAdmin(ReadOnlyAdmin):
    """One page with all endpoints."""

    actions = None

    @transaction.non_atomic_requests
    def changelist_view(self, request: Any, extra_context: Any = None) -> HttpResponse:
        """Show the endpoints."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Endpoints",
            "opts": self.opts,
            "media": self.media,
            "endpoints": [self._described(request, each) for each in reading.list_endpoints()],
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/onceonly/endpointstatus/list.html", context)

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> None:
        """Return none: an endpoint has no page of its own."""

    def _described(self, request: Any, row: reading.EndpointRow) -> dict[str, Any]:
        query = "?" + urlencode({"endpoint": row.name, "database": row.database})
        lists = {
            name: reverse(f"{self.admin_site.name}:{self.opts.app_label}_{name}_changelist") + query
            for name in ("deadletter", "pendingrecord")
            if request.user.has_perm(f"onceonly.view_{name}")
        }
        return {
            "name": escape(row.name),
            "database": row.database,
            "transport": row.transport,
            "pending": _up_to(row.pending),
            "oldest": "" if row.oldest is None else in_words(row.oldest),
            "letters": _up_to(row.letters),
            "processes": [
                escape(f"{host}, {pid}, version {version}, seen {in_words(seen)} ago")
                for host, pid, version, seen in row.processes
            ],
            "remark": row.remark,
            "letters_url": lists.get("deadletter"),
            "records_url": lists.get("pendingrecord"),
        }


def _up_to(number: int) -> str:
    return f"{number:,} or more" if number >= reading.COUNTED else f"{number:,}"


def _choice(asked: Mapping[str, str]) -> reading.LetterChoice | None:
    """Return what an address chooses; None for what no list of this app chooses."""
    endpoint, failure, before = (asked.get(name, "") for name in ("endpoint", "failure", "before"))
    name, _, digits = failure.rpartition(":")
    is_wrong = "\0" in endpoint + name or (failure and not (name and _KEY.fullmatch(digits)))
    if is_wrong or (name and endpoint not in ("", name)) or (before and not _DIGITS.fullmatch(before)):
        return None
    return reading.LetterChoice(endpoint or name, digits, int(before) if before else None)


def _sample(request: Any, alias: str) -> reading.LetterTraits:
    """Return what the newest letters have, read once for a page."""
    if not hasattr(request, "onceonly_sample"):
        endpoint = request.GET.get("endpoint", "")
        request.onceonly_sample = reading.sample_letters(alias, "" if "\0" in endpoint else endpoint)
    found: reading.LetterTraits = request.onceonly_sample
    return found
