"""The settings of the shop with onceonly."""

from urllib.parse import quote

from examples.hosts.django_shop.settings import *  # noqa: F403 - as projects of Django do
from examples.hosts.django_shop.settings import INSTALLED_APPS
from examples.hosts.program import BROKER, PREFIX

INSTALLED_APPS = [*INSTALLED_APPS, "onceonly.integrations.django"]
ONCEONLY = {
    "ENDPOINTS": ["examples.hosts.django_shop.exactly_once:shop"],
    "TRANSPORT": f"{BROKER or 'amqp://127.0.0.1'}?prefix={quote(PREFIX)}",
}
ROOT_URLCONF = "examples.hosts.django_shop.exactly_once"
