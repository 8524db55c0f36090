"""The table of the invoices."""

from django.db import models

from examples.hosts.django_shop.models import Order


class Invoice(models.Model):
    """One row for each time an order was invoiced: nothing else keeps it from being there twice."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return f"invoice of {self.order}"
