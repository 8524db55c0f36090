"""The endpoints of a Django project, for commands: `onceonly run onceonly.integrations.django.endpoints:shop`.

Importing this module sets Django up, as worker processes need it that are started without `manage.py`. Its attributes are the
endpoints of `ONCEONLY["ENDPOINTS"]`, by their names.
"""

import django
from django.apps import apps
from django.utils.module_loading import import_string

from onceonly.integrations.django.configuration import configuration
from onceonly.integrations.django.endpoint import DjangoEndpoint, add_task_handler
from onceonly.model.errors import SetupError

if not apps.ready:
    django.setup()


def load_endpoints() -> tuple[DjangoEndpoint, ...]:
    """Import the endpoints of the project. Raises SetupError."""
    found: dict[str, DjangoEndpoint] = {}
    for name in configuration().endpoints:
        try:
            endpoint = import_string(name.replace(":", "."))
        except ImportError as error:
            raise SetupError(f"ONCEONLY ENDPOINTS has {name!r}, which cannot be imported: {error}") from error
        if not isinstance(endpoint, DjangoEndpoint):
            raise SetupError(f"ONCEONLY ENDPOINTS has {name!r}, which is not an Endpoint of onceonly.integrations.django")
        if found.setdefault(endpoint.name, endpoint) is not endpoint:
            raise SetupError(
                f"ONCEONLY ENDPOINTS has two endpoints named {endpoint.name!r}, and commands and queues are found by name: "
                f"give each database an endpoint with a name of its own, such as {endpoint.name}-{endpoint.database}"
            )
        add_task_handler(endpoint)
    return tuple(found.values())


globals().update({endpoint.name: endpoint for endpoint in load_endpoints()})
