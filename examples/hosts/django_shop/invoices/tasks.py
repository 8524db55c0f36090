"""The task, which is the same in both applications."""

from celery import shared_task

from examples.hosts.django_shop.invoices.models import Invoice


@shared_task
def send_invoice(order: int) -> None:
    """Write an invoice."""
    Invoice.objects.create(order_id=order)
