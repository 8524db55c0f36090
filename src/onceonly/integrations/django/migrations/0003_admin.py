"""The models of the admin's pages. They have no tables of their own."""

from typing import Any, ClassVar

from django.db import migrations, models

from onceonly.integrations.django.models import ExactField, KeyField


class Migration(migrations.Migration):
    """Changes no table: Django creates content types and permissions."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("onceonly", "0002_transport")]
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("position", models.BigIntegerField(primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=32, unique=True)),
                ("endpoint", models.CharField(max_length=255)),
                ("type", models.TextField()),
                ("reason", models.TextField()),
                ("stored_at", models.BigIntegerField()),
                ("letter", models.BinaryField()),
                ("failure", KeyField()),
            ],
            options={
                "verbose_name": "dead letter",
                "db_table": "onceonly_dead_letters",
                "permissions": [("retry_deadletter", "Can retry dead letter")],
                "managed": False,
                "default_permissions": ("view", "delete"),
            },
        ),
        migrations.CreateModel(
            name="PendingRecord",
            fields=[
                ("key", KeyField(primary_key=True, serialize=False)),
                ("endpoint", models.CharField(max_length=255)),
                ("source", ExactField()),
                ("message_id", ExactField(db_column="id")),
                ("effects", models.BinaryField()),
                ("stored_at", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "pending record",
                "db_table": "onceonly_records",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="EndpointStatus",
            fields=[],
            options={
                "verbose_name": "endpoint",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("onceonly.pendingrecord",),
        ),
    ]
