"""The table of the results of tasks."""

from typing import Any, ClassVar

from django.db import migrations, models

from onceonly.integrations.django.models import JSONTextField
from onceonly.integrations.django.schema import RefuseWhileWaiting


class Migration(migrations.Migration):
    """Creates it."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("onceonly", "0003_admin")]
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="TaskResult",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("status", models.CharField(max_length=10)),
                ("task", models.TextField()),
                ("args", JSONTextField()),
                ("kwargs", JSONTextField()),
                ("backend", models.TextField()),
                ("queue_name", models.TextField()),
                ("run_after", models.DateTimeField(null=True)),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("worker_ids", JSONTextField()),
                ("return_value", JSONTextField(null=True)),
                ("errors", JSONTextField()),
            ],
            options={
                "verbose_name": "task result",
                "db_table": "onceonly_task_results",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["finished_at"], name="onceonly_task_results_finished")],
            },
        ),
        RefuseWhileWaiting(),
    ]
