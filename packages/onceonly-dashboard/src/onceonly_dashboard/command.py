"""`onceonly dashboard`: serve the operations dashboard of endpoints."""

import asyncio
import logging
import os
import socket
import sys
from getpass import getpass
from ipaddress import ip_network
from typing import Annotated, cast

import typer
import uvicorn

from onceonly.cli.output import say, show
from onceonly.cli.targets import load_all
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.systems.urls import Address, parse_address
from onceonly_dashboard import Authentication, basic, hash_password, loopback_only
from onceonly_dashboard import bearer as bearer_of
from onceonly_dashboard import dashboard as application
from onceonly_dashboard.access import is_loopback, read_users
from onceonly_dashboard.app import Dashboard
from onceonly_dashboard.gate import LOCAL_HOSTS

DEFAULT_ADDRESS = "127.0.0.1:8090"
SHORTEST_PASSWORD = 12
SECRET, USERS = "ONCEONLY_DASHBOARD_SECRET", "ONCEONLY_DASHBOARD_USERS"

_log = EventLogger(logging.getLogger("onceonly.dashboard"))


def dashboard(  # noqa: PLR0913 - one parameter for each option
    endpoints: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.", show_default=False),
    ] = None,
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to serve at. A port alone binds to localhost.")
    ] = DEFAULT_ADDRESS,
    users: Annotated[
        str | None,
        typer.Option("--users", metavar="FILE", help="File with lines NAME:HASH, for HTTP Basic."),
    ] = None,
    bearer: Annotated[
        str | None, typer.Option("--bearer", metavar="FILE", help="File with lines NAME:HASH, for bearer tokens.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="NAME:ROLE,...", help="Roles of a user; * for all others. May be repeated."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Host name that browsers use. May be repeated [default: localhost]."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="IP address or network of a proxy whose X-Forwarded-For names the client, such as 10.0.0.0/8. May be repeated "
            "[default: none].",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Serve pages without actions.")] = False,
    audit_views: Annotated[bool, typer.Option("--audit-views", help="Store who opened which body.")] = False,
    send_as_new: Annotated[
        bool, typer.Option("--send-as-new", help="Permit sending payload mismatches and letters without id as new messages.")
    ] = False,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="URL",
            help="Address of `onceonly run --health`, for stores that do not know the processes. May be repeated.",
        ),
    ] = None,
    new_user: Annotated[
        str | None, typer.Option("--new-user", metavar="NAME", help="Read a password, print a line for --users, and exit.")
    ] = None,
) -> None:
    """Serve a web page with the state of endpoints.

    Without --users, --bearer or the variable ONCEONLY_DASHBOARD_USERS (lines NAME:HASH) pages need no login, and --listen must
    be a loopback address. Terminate TLS in front of it.

    Roles: view, body, retry, edit, delete, force. By default each user has all but force.

    Several processes behind one address need the same ONCEONLY_DASHBOARD_SECRET.
    """
    if new_user is not None:
        show(_new_line(new_user))
        return
    if not endpoints:
        raise SetupError("no endpoint is named: `onceonly dashboard module:endpoint`, such as shop:shop")
    try:
        address = parse_address(listen)
    except ValueError as error:
        raise SetupError(f"--listen: {error}") from error
    proxies = _proxies(trusted_proxy or ())
    loaded = load_all(endpoints)
    auth = _authentication(address, users, bearer)
    hosts = [*(host or ()), *_hosts_of(address)]
    app = application(
        *loaded,
        auth=auth,
        roles=_roles(role or ()),
        read_only=read_only,
        hosts=hosts,
        secret=os.environ.get(SECRET) or None,
        audit_views=audit_views,
        send_as_new=send_as_new,
        workers=worker or (),
    )
    cast("Dashboard", app).name_targets(endpoints)
    asyncio.run(_serve(app, address, proxies))


def _authentication(address: Address, users: str | None, bearer: str | None) -> Authentication:
    """Select how people log in; on a loopback address no login is needed. Raises SetupError."""
    listed = os.environ.get(USERS)
    if users is not None and bearer is not None:
        raise SetupError("--users and --bearer exclude each other: use one of them")
    if bearer is not None:
        return bearer_of(bearer)
    if users is not None or listed:
        return basic(users if users is not None else read_users(listed or "", f"variable {USERS}"))
    if not is_loopback(address.host):
        raise SetupError(
            f"--listen {address} is reachable from other machines, and no login is set. Use --users FILE or --bearer FILE; "
            "`onceonly dashboard --new-user NAME` prints a line of such a file"
        )
    return loopback_only()


def _roles(given: list[str] | tuple[str, ...]) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for each in given:
        name, colon, roles = each.partition(":")
        if not colon or not name:
            raise SetupError(f"--role {each!r}: write NAME:ROLE,ROLE, such as ana:view,retry")
        found.setdefault(name, []).extend(role.strip() for role in roles.split(",") if role.strip())
    return found or None


def _proxies(given: list[str] | tuple[str, ...]) -> list[str]:
    """Check addresses and networks of proxies. Raises SetupError."""
    for each in given:
        try:
            network = ip_network(each)
        except ValueError as error:
            raise SetupError(
                f"--trusted-proxy {each!r:.80}: {error}. Write an IP address or a network, such as 10.0.0.0/8"
            ) from error
        if not network.prefixlen:
            raise SetupError(
                f"--trusted-proxy {each}: this trusts every client, so each could choose its address. Name the proxy"
            )
    return list(given)


def _hosts_of(address: Address) -> list[str]:
    """Return the names by which a browser on this machine asks; and the address itself, unless it stands for all."""
    own = f"[{address.host}]" if ":" in address.host else address.host
    return [*LOCAL_HOSTS, *([] if own in ("0.0.0.0", "[::]") else [own.lower()])]  # noqa: S104 - compared, not bound


def _new_line(name: str) -> str:
    if sys.stdin.isatty():
        password = getpass("Password: ")
        if password != getpass("Again: "):
            raise SetupError("the passwords differ: run the command again")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < SHORTEST_PASSWORD:
        raise SetupError(f"the password has {len(password)} characters: use at least {SHORTEST_PASSWORD}")
    hashed = hash_password(password)
    basic({name: hashed})  # it raises for a name that cannot be used
    return f"{name}:{hashed}"


async def _serve(app: object, address: Address, proxies: list[str]) -> None:
    listening = listen(address)
    port = listening.getsockname()[1]
    where = Address(address.host, port)
    _log.info("dashboard listening", extra={"address": str(where)})
    say(f"dashboard at http://{where}/ - press Ctrl-C to stop")
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        proxy_headers=bool(proxies),  # by default uvicorn trusts clients on this machine, which could choose their address
        forwarded_allow_ips=proxies,
    )
    await uvicorn.Server(config).serve(sockets=[listening])


def listen(address: Address) -> socket.socket:
    """Return a socket that listens at the address. Raises SetupError if the address cannot be used."""
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server((address.host, address.port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise SetupError(f"cannot listen at {address}: {error.strerror or error}. Use another --listen address") from error
