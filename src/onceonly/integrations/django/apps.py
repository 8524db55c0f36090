"""The installed app: its migrations create the tables, and `flush` empties them."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from onceonly.integrations.django.configuration import configuration


class OnceonlyConfig(AppConfig):
    """The app `onceonly`."""

    name = "onceonly.integrations.django"
    label = "onceonly"
    verbose_name = "onceonly"

    def ready(self) -> None:
        """Check the settings, register checks, and have `flush` empty the tables."""
        from onceonly.integrations.django import checks  # noqa: PLC0415 - it registers them

        configuration()
        checks.register_all()
        post_migrate.connect(_flush, sender=self, dispatch_uid="onceonly.flush")


def _flush(using: str, **told: Any) -> None:
    """Empty the tables when a `flush` of another app has emptied those of the models. That of this app needs no signal.

    Django sends the same signal after `migrate`, which tells its plan.
    """
    from onceonly.integrations.django.schema import empty_tables  # noqa: PLC0415 - when it is needed

    if "plan" not in told:
        empty_tables(using)
