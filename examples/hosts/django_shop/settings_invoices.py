"""The settings of the shop with invoices and onceonly."""

from examples.hosts.django_shop.settings_invoices_control import *  # noqa: F403 - as projects of Django do
from examples.hosts.django_shop.settings_invoices_control import INSTALLED_APPS
from examples.hosts.django_shop.settings_once import ONCEONLY, ROOT_URLCONF

__all__ = ["ONCEONLY", "ROOT_URLCONF"]
INSTALLED_APPS = [*INSTALLED_APPS, "onceonly.integrations.django"]
CELERY_MODULE = "examples.hosts.django_shop.invoices.once"
