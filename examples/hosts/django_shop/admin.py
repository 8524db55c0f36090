"""What the admin site shows."""

from django.contrib import admin

from examples.hosts.django_shop.models import Order

admin.site.register(Order, list_display=["id", "order_id"], search_fields=["order_id"])
