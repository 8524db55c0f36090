"""The endpoint of the shop. It imports no models, so that the application of Celery can import it first."""

from onceonly.integrations.django import Endpoint

shop = Endpoint("shop", relay_after=1)
