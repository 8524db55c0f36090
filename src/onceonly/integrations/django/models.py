"""What Django's admin shows of the tables that migrations create. Django creates, changes and flushes none of these.

The tables are those of `onceonly schema`. Models read them; only onceonly writes to them.
"""

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
