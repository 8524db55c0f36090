"""The app of the shop."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app `shop`."""

    name = "examples.hosts.django_shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
