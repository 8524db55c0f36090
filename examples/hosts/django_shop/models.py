"""The table of the shop."""

from django.db import models


class Order(models.Model):
    """One row for each time an order was placed: nothing else keeps it from being there twice."""

    order_id = models.CharField(max_length=80)

    def __str__(self) -> str:
        return str(self.order_id)
