"""Models: what Django's admin shows of the tables of `onceonly schema`, and the results of tasks.

Django creates, changes and flushes only the table of results. Models read the others, which only onceonly writes to.
"""

import json
from typing import Any, ClassVar
from uuid import UUID

from django.db import models

from onceonly.model.identity import CLAIM_KEY_BYTES


class KeyField(models.Field):
    """A key of 16 bytes, as 32 hexadecimal digits: a `uuid` in PostgreSQL, and bytes elsewhere."""

    def from_db_value(self, value: Any, *_: Any) -> str:
        """Return the digits."""
        if isinstance(value, UUID):
            return value.hex
        return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's
        """Return what the driver takes. Raises ValueError for what is not a key."""
        if not isinstance(value, str):
            return value
        key = bytes.fromhex(value)
        if len(key) != CLAIM_KEY_BYTES:
            raise ValueError(f"a key has {CLAIM_KEY_BYTES} bytes, not {len(key)}")
        return UUID(bytes=key) if connection.vendor == "postgresql" else key


class ExactField(models.Field):
    """Text that some databases store as bytes. Bytes that are not UTF-8 are shown as escapes."""

    def from_db_value(self, value: Any, *_: Any) -> str:
        """Return the text."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode(errors="backslashreplace")
        return str(value)


class JSONTextField(models.TextField):
    """A JSON value as text. Databases change what they store as JSON: numbers, the order of keys, some characters."""

    def from_db_value(self, value: str | None, *_: Any) -> Any:
        """Return the value."""
        return None if value is None else json.loads(value)

    def get_prep_value(self, value: Any) -> str | None:
        """Return the text. Raises ValueError for a number that is not finite, and TypeError for what is not JSON."""
        return None if value is None else json.dumps(value, allow_nan=False)


class DeadLetter(models.Model):
    """A message that was given up."""

    position = models.BigIntegerField(primary_key=True)
    key = models.CharField(max_length=32, unique=True)
    endpoint = models.CharField(max_length=255)
    type = models.TextField()
    reason = models.TextField()
    stored_at = models.BigIntegerField()
    letter = models.BinaryField()
    failure = KeyField()

    class Meta:
        """Created by `UpgradeTables`."""

        managed = False
        db_table = "onceonly_dead_letters"
        default_permissions = ("view", "delete")
        permissions: ClassVar[list[tuple[str, str]]] = [("retry_deadletter", "Can retry dead letter")]
        verbose_name = "dead letter"

    def __str__(self) -> str:
        return str(self.key)


class PendingRecord(models.Model):
    """A committed record whose messages are not all sent."""

    key = KeyField(primary_key=True)
    endpoint = models.CharField(max_length=255)
    source = ExactField()
    message_id = ExactField(db_column="id")
    effects = models.BinaryField()
    stored_at = models.BigIntegerField()

    class Meta:
        """Created by `UpgradeTables`."""

        managed = False
        db_table = "onceonly_records"
        default_permissions = ("view",)
        verbose_name = "pending record"

    def __str__(self) -> str:
        return str(self.key)


class EndpointStatus(PendingRecord):
    """The page of endpoints. They have no table: this class has the permission to see the page."""

    class Meta:
        """A proxy, for which Django asks no table."""

        proxy = True
        default_permissions = ("view",)
        verbose_name = "endpoint"


class TaskResult(models.Model):
    """A task that was enqueued, and what came of it."""

    id = models.CharField(primary_key=True, max_length=32, serialize=False)
    status = models.CharField(max_length=10)
    task = models.TextField()
    args = JSONTextField()
    kwargs = JSONTextField()
    backend = models.TextField()
    queue_name = models.TextField()
    run_after = models.DateTimeField(null=True)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    worker_ids = JSONTextField()
    return_value = JSONTextField(null=True)
    errors = JSONTextField()

    class Meta:
        """Created by a migration, as tables of other apps."""

        db_table = "onceonly_task_results"
        default_permissions = ("view",)
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["finished_at"], name="onceonly_task_results_finished")]
        verbose_name = "task result"

    def __str__(self) -> str:
        return str(self.id)
