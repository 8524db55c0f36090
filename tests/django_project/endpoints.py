"""The endpoint of the project, for workers of Celery."""

from onceonly.integrations.django import Endpoint

shop = Endpoint("django-shop", relay_after=0.5)
