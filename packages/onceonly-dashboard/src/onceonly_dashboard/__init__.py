"""The operations dashboard: an ASGI application that runs by `onceonly dashboard`, or mounted in an application of yours."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError
from onceonly.model.message import Message
from onceonly_dashboard.access import (
    Authentication,
    User,
    application,
    basic,
    bearer,
    check_roles,
    hash_password,
    loopback_only,
)
from onceonly_dashboard.app import Dashboard
from onceonly_dashboard.gate import AccessSettings, FormTokens, check_hosts
from onceonly_dashboard.page_request import PageOptions
from onceonly_dashboard.redaction import check_redact
from onceonly_dashboard.views.letters import check_links
from onceonly_dashboard.workers import check_workers

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["Authentication", "User", "application", "basic", "bearer", "dashboard", "hash_password", "loopback_only"]


def dashboard(  # noqa: PLR0913 - one parameter for each option
    *endpoints: Endpoint,
    auth: Authentication | None = None,
    roles: Mapping[str, Iterable[str]] | None = None,
    read_only: bool = False,
    redact: Callable[[Message], Message] | None = None,
    links: Mapping[str, str] | None = None,
    hosts: Sequence[str] | None = None,
    secret: str | bytes | None = None,
    audit_views: bool = False,
    send_as_new: bool = False,
    workers: Sequence[str] = (),
) -> "ASGIApp":
    """Return an ASGI application that shows these endpoints. Mount it under any prefix, or serve it alone.

    * `auth`: `basic`, `bearer`, `application` or `loopback_only`. It is required.
    * `roles`: the roles of each user by name, "*" for all others: "view", "body", "retry", "edit", "delete", "force". By
      default all users have all roles but "force".
    * `read_only`: whether the pages have no actions, whatever the roles.
    * `redact`: returns the message to show, called before a dead letter is rendered. A message without an identity has an empty
      source and id. If it changes the message, texts of exceptions are hidden. If it fails, the message is hidden.
    * `links`: names with templates of URLs, such as `{"Trace": "https://traces.example/{trace}"}`, for each dead letter. The
      fields are endpoint, source, id, type, key and trace.
    * `hosts`: the host names in the address of the dashboard, without ports. Default: localhost, 127.0.0.1, [::1].
    * `secret`: at least 16 characters, the same in each process that serves the dashboard. A single process needs none.
    * `audit_views`: whether an action is stored when a user opens the body of a dead letter.
    * `send_as_new`: whether a payload mismatch, or a dead letter without identity, can be sent as a new message.
    * `workers`: addresses of `onceonly run --health`, such as "http://10.0.0.5:8080", from which the processes of endpoints are
      read whose store does not know them. Each is asked for `/ready` every 10 seconds. Needs the extra `http`.

    It starts to read the endpoints' places at the first request, or at the start of its lifespan. Raises SetupError.
    """
    if auth is None:
        raise SetupError(
            "the dashboard has no auth=. Use basic(users), bearer(tokens) or application(hook) of onceonly_dashboard. "
            "loopback_only() accepts everyone on this machine"
        )
    _check(endpoints, auth)
    access = AccessSettings(auth, check_roles(roles), check_hosts(hosts), read_only)
    options = PageOptions(check_redact(redact), check_links(links or {}), audit_views, send_as_new, check_workers(workers))
    return Dashboard(endpoints, access, FormTokens(secret), options=options)


def _check(endpoints: Sequence[Any], auth: object) -> None:
    if not endpoints:
        raise SetupError("the dashboard has no endpoint: dashboard(shop, billing, auth=...)")
    if wrong := [each for each in endpoints if not isinstance(each, Endpoint)]:
        raise SetupError(f"the dashboard shows endpoints, not {type(wrong[0]).__name__}: dashboard(shop, billing, auth=...)")
    names = [each.settings.name for each in endpoints]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SetupError(f"two endpoints are named {', '.join(twice)}: give each a unique name")
    if not hasattr(auth, "identify"):
        raise SetupError(
            f"auth must be basic(...), bearer(...), application(...) or loopback_only(), not {type(auth).__name__}"
        )
