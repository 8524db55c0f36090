"""The tables of queues, for endpoints whose transport is the same database."""

from typing import ClassVar

from django.db import migrations

from onceonly.integrations.django.schema import UpgradeTables


class Migration(migrations.Migration):
    """Creates them, in version 1."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("onceonly", "0001_store")]
    operations: ClassVar[list[UpgradeTables]] = [UpgradeTables("transport", 1, creates=True)]
