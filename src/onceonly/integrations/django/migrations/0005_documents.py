"""The table of documents, in which tokens are: for endpoints with `deduplication=Tokens()`."""

from typing import ClassVar

from django.db import migrations

from onceonly.integrations.django.schema import UpgradeTables


class Migration(migrations.Migration):
    """Creates it, in version 1."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("onceonly", "0004_task_results")]
    operations: ClassVar[list[UpgradeTables]] = [UpgradeTables("documents", 1, creates=True)]
