"""The table of the project."""

from django.db import models


class Order(models.Model):
    """One row for each message."""

    number = models.AutoField(primary_key=True)
    order_id = models.TextField()

    class Meta:
        """The table that the benchmark creates."""

        app_label = "django_handlers"
        db_table = "orders"
        managed = False

    def __str__(self) -> str:
        return str(self.order_id)
