"""What the pages of Django's admin share: rows that only onceonly writes, of the database that an address names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.http import Http404, HttpResponse
from django.urls import reverse

from onceonly.integrations.django import admin_reading as reading


class AddressFilter(admin.SimpleListFilter):
    """A filter of a list. What it chooses, `get_queryset` of the page reads from the address."""

    def lookups(self, request: Any, _page: Any) -> Iterable[tuple[str, str]]:
        """Return what can be chosen."""
        return self.choices_of(alias_of(request), request)

    def choices_of(self, alias: str, request: Any) -> Iterable[tuple[str, str]]:
        """Return what can be chosen in a database: values with their labels."""
        raise NotImplementedError

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Leave it as it is."""
        return queryset


class DatabaseFilter(AddressFilter):
    """Chooses the database, where endpoints use several."""

    title = "database"
    parameter_name = "database"

    def choices_of(self, _alias: str, request: Any) -> Iterable[tuple[str, str]]:
        found = reading.aliases()
        return [(each, each) for each in found] if len(found) > 1 else []


class Results(ChangeList):
    """The rows of a list, with links that name their database, and what more there is."""

    def url_for_result(self, result: Any) -> str:
        """Return the address of a page."""
        name = f"{self.model_admin.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change"
        return str(reverse(name, args=(quote(id_of(result)),)))

    def get_results(self, request: Any) -> None:
        """Add the address of the list with older letters."""
        super().get_results(request)
        window: reading.LetterWindow | None = getattr(request, "onceonly_window", None)
        self.listed = 0 if window is None else len(window.positions)
        more = window is not None and not window.is_complete
        self.older = self.get_query_string({"before": window.last}, ["p"]) if window is not None and more else ""


class ReadOnlyAdmin(admin.ModelAdmin):
    """Pages of rows that only onceonly writes."""

    show_full_result_count = False
    show_facets = getattr(getattr(admin, "ShowFacets", None), "NEVER", None)
    ordering: ClassVar[Sequence[str]] = ()
    list_per_page = 100
    list_max_show_all = 100
    parameters: ClassVar[frozenset[str]] = frozenset()

    class Media:
        """The sizes of long texts."""

        css: ClassVar[Mapping[str, Sequence[str]]] = {"all": ["onceonly/admin.css"]}

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Allow nothing but the filters: others could read a whole table."""
        return lookup in self.parameters

    def get_changelist(self, request: Any, **_options: Any) -> type[ChangeList]:
        return Results

    @transaction.non_atomic_requests
    def changelist_view(self, request: Any, extra_context: Any = None) -> HttpResponse:
        """Show the list, or do what was chosen. The operations have a connection of their own."""
        return super().changelist_view(request, extra_context)

    def history_view(self, request: Any, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Refuse it: Django has no history of what it does not write."""
        raise Http404("onceonly stores what was done, and the page of a dead letter shows it")

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Return what `get_queryset` has found."""
        return queryset, False


def alias_of(request: Any) -> str:
    """Return the database that an address chooses: one of an endpoint, by default the first one."""
    found, asked = reading.aliases(), request.GET.get("database", "")
    return asked if asked in found else found[0]


def id_of(row: Any) -> str:
    """Return what names a row in addresses: its key, and its database where that is not the first one."""
    alias = row._state.db  # noqa: SLF001 - documented
    return str(row.pk) if alias == reading.aliases()[0] else f"{alias}:{row.pk}"


def alias_and_key(object_id: str) -> tuple[str, str]:
    """Return the database and the key in an address. The database is empty if no endpoint uses it."""
    alias, colon, key = object_id.rpartition(":")
    found = reading.aliases()
    return (found[0] if not colon else alias if alias in found else ""), key


def database_query(row: Any) -> str:
    """Return the part of an address that chooses the database of a row."""
    alias = row._state.db  # noqa: SLF001 - documented
    return "" if alias == reading.aliases()[0] else f"?database={quote(alias)}"
