"""The same, but web processes send nothing: `manage.py onceonly relay` does."""

from examples.hosts.django_shop.settings_once import *  # noqa: F403 - as projects of Django do
from examples.hosts.django_shop.settings_once import ONCEONLY

ONCEONLY = {**ONCEONLY, "SENDING_THREAD": False}
