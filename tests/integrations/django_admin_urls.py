"""The URLs of a project with the admin."""

from django.contrib import admin
from django.http import HttpResponse
from django.urls import path


def has_no_icon(_request: object) -> HttpResponse:
    """Answer browsers, which ask for an icon."""
    return HttpResponse(status=204)


urlpatterns = [path("admin/", admin.site.urls), path("favicon.ico", has_no_icon)]
