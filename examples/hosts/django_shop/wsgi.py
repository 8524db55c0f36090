"""The application that gunicorn serves. Views are imported here, so that a new worker has them already."""

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

application = get_wsgi_application()
get_resolver().url_patterns  # noqa: B018 - it imports them
