"""The tables of the store."""

from typing import ClassVar

from django.db import migrations

from onceonly.integrations.django.schema import UpgradeTables


class Migration(migrations.Migration):
    """Creates them, in version 8."""

    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[UpgradeTables]] = [UpgradeTables("store", 8, creates=True)]
