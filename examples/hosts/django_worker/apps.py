"""The app of the project."""

from django.apps import AppConfig


class WorkerConfig(AppConfig):
    """The app `django_worker`."""

    name = "examples.hosts.django_worker"
    label = "django_worker"
