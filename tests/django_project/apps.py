"""The app of the tests."""

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    """The app of the tests."""

    name = "tests.django_project"
    label = "django_project"
