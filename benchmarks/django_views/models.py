"""The table."""

from django.db import models


class Order(models.Model):
    """One row for each request."""

    order_id = models.CharField(max_length=80)

    class Meta:
        """It is created without migrations."""

        managed = False
        db_table = "orders"

    def __str__(self) -> str:
        return str(self.order_id)
