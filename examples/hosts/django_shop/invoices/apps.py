"""The app of the invoices."""

from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_save


class InvoicesConfig(AppConfig):
    """The app `invoices`."""

    name = "examples.hosts.django_shop.invoices"
    label = "invoices"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the application of Celery, which is that of `shared_task`, and have each new order invoiced."""
        import_module(settings.CELERY_MODULE)
        post_save.connect(_invoice, sender="shop.Order", dispatch_uid="invoices")


def _invoice(*, instance: Any, created: bool, **_: Any) -> None:
    from examples.hosts.django_shop.invoices.tasks import send_invoice  # noqa: PLC0415 - models are there by now

    if created:
        send_invoice.delay_on_commit(instance.pk)
