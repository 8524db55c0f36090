"""The table of orders, which the harness creates."""

from django.db import models


class Order(models.Model):
    """One row for each time an order was placed: nothing else keeps it from being there twice."""

    number = models.BigAutoField(primary_key=True)
    order_id = models.CharField(max_length=80)

    class Meta:
        """The harness has created it."""

        app_label = "django_worker"
        db_table = "orders"
        managed = False

    def __str__(self) -> str:
        return str(self.order_id)
