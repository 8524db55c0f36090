"""For Django: an installed app whose endpoints send messages in Django's own transactions, and whose views run once.

    INSTALLED_APPS = [..., "onceonly.integrations.django"]
    ONCEONLY = {"ENDPOINTS": ["shop.endpoints:shop"], "TRANSPORT": "amqp://localhost"}

`manage.py migrate` creates the tables, and `manage.py onceonly run` is the command line.
"""

from onceonly.model.errors import DriverMissing

try:
    import django as _django  # noqa: F401 - whether it is there
except ModuleNotFoundError as missing:
    raise DriverMissing("django is not installed: pip install 'onceonly[django]'") from missing

from onceonly.integrations.django.capture import CapturedMessage, CapturedMessages, captured
from onceonly.integrations.django.endpoint import DjangoEndpoint as Endpoint
from onceonly.integrations.django.views import Principal, by_user, idempotent

__all__ = ["CapturedMessage", "CapturedMessages", "Endpoint", "Principal", "by_user", "captured", "idempotent"]
