"""Locations: a URL or a user's own engine, read once, and the system that it belongs to. No driver is imported for that.

In telemetry a transport is called by `messaging.system` of the OpenTelemetry semantic conventions, or by a name of our own.
"""

import re
from typing import Any

from msgspec import Struct

from onceonly.model.errors import DriverMissing, SetupError
from onceonly.ports.transport import Traits
from onceonly.systems import Driver, Family, Offer, Role, System, driver_of, full_name, imported, schemes, system_of, systems
from onceonly.systems.urls import login_problem

_ENGINE_ROLES = frozenset({"store", "dead_letters"})
_ENGINES = frozenset({"sqlalchemy.ext.asyncio.engine.AsyncEngine", "sqlalchemy.ext.asyncio.session.async_sessionmaker"})
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)://")
_HOSTS = r"(?:(?:[\w.-]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{1,5})?,?)*"
"""What messages show of a host: without a user, a word where a port should be is perhaps a password."""


class Location(Struct, frozen=True):
    """A place that a setting names. As text, also as `repr`, it is what messages may show: no user, password and options.

    `setting` is the URL, the `AsyncEngine` or the `async_sessionmaker` as the user gave it.
    """

    setting: Any
    system: System
    driver: Driver

    def __str__(self) -> str:
        return shown(self.setting)

    def __repr__(self) -> str:
        return f"Location({shown(self.setting)!r})"

    @property
    def family(self) -> Family | None:
        """The kind of store. None for a place that cannot be a store."""
        return self.system.family

    @property
    def is_shared(self) -> bool:
        """Whether other processes see what is there."""
        return not self.system.in_process

    @property
    def offer(self) -> Offer:
        """What handlers may ask a store there for."""
        connection = frozenset({self.driver.connection}) if self.driver.connection else frozenset[str]()
        return self.system.offer._replace(asynchronous=self.system.offer.asynchronous | connection)

    @property
    def traits(self) -> Traits | None:
        """What the broker does with queues there. None for an engine, and if the system does not tell before it is opened."""
        known = self.system.traits if isinstance(self.setting, str) else None
        return None if known is None else known(self.setting)

    def require_driver(self, role: Role) -> None:
        """Check that the driver is installed. Raises DriverMissing, with the command that installs it."""
        if missing := self.driver.missing():
            needed = " and ".join(missing)
            raise DriverMissing(f"{role}={str(self)!r}: its driver, {needed}, is not installed: {self.driver.install}")


NO_TRANSPORT = Location(
    None, System(name="no transport", transport=imported("onceonly.queues.no_transport"), in_process=True), Driver()
)
"""Where the messages of an endpoint without a transport go: nowhere."""


def locate(setting: object, role: Role) -> Location:
    """Read a setting for a role; a `Location` is returned as it is. Raises SetupError when it cannot be used for that."""
    found = setting if isinstance(setting, Location) else _read(setting, role)
    if not found.system.serves(role):
        name = found.system.name if is_engine(found.setting) else f"{scheme_of(found.setting)}://"
        raise SetupError(f"{role}={str(found)!r}: this version of onceonly has no {role} for {name}; there is {working(role)}")
    return found


def read_url(url: str) -> Location:
    """Read a URL, whatever it is to be used for. Raises SetupError when no system has its scheme."""
    return _read(url, "store")


def problem_of(setting: object, role: Role) -> str | None:
    """Return why a setting cannot be used for a role, or None."""
    try:
        locate(setting, role)
    except SetupError as error:
        return str(error)
    return None


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case; empty when there is none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def shown(setting: object) -> str:
    """Return a URL as messages may show it: without user, password and options. For an engine, its type and its URL."""
    if isinstance(setting, Location):
        return shown(setting.setting)
    if setting is None:
        return "(none)"
    if not isinstance(setting, str):
        url = _url_of(setting)
        return f"{type(setting).__name__}({shown(url)})" if url else type(setting).__name__
    scheme, _, rest = setting.partition("://")
    if not scheme_of(setting):
        return "(no URL)"
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    host = host.rpartition("@")[2]
    if login_problem(setting) or "@" in path or not re.fullmatch(_HOSTS, host):
        return f"{scheme}://..."
    return f"{scheme}://{host}{slash}{path}"


def working(role: Role) -> str:
    """List the schemes that serve a role, for error messages."""
    return ", ".join(f"{scheme}://" for scheme, system in systems().items() if system.serves(role))


def is_engine(setting: object) -> bool:
    """Return whether this is an AsyncEngine or an async_sessionmaker. SQLAlchemy is not imported."""
    return any(full_name(each) in _ENGINES for each in type(setting).__mro__)


def _read(setting: object, role: Role) -> Location:
    if isinstance(setting, str):
        scheme = scheme_of(setting)
        if scheme and (problem := login_problem(setting)):  # before anything takes it apart, and shows a part of it
            raise SetupError(f"{role}='{scheme}://...': {problem}")
        system, driver = system_of(scheme), driver_of(scheme)
        if system is None or driver is None:
            raise SetupError(f"{role}={shown(setting)!r}: {_unknown(scheme)}. Supported: {working(role)}")
        if system.address is not None and system.serves(role):
            try:
                system.address(setting)
            except SetupError as error:
                raise SetupError(f"{role}={shown(setting)!r}: {error}") from error
        return Location(setting, system, driver)
    if role not in _ENGINE_ROLES or not is_engine(setting):
        raise SetupError(_no_url(setting, role))
    name = _url_of(setting).partition("://")[0].lower()
    if not name:
        raise SetupError(f"{role} is an {type(setting).__name__} without an engine. Bind it: async_sessionmaker(engine)")
    system, driver = system_of(name), driver_of(name) or driver_of(name.removesuffix("_async"))
    if system is None or driver is None:
        raise SetupError(f"{role}={shown(setting)!r}: {_unknown(name)}. Supported: {working(role)}")
    return Location(setting, system, driver)


def _url_of(engine: Any) -> str:
    """Return the URL of an engine, or of the one that a session factory is bound to. Empty if there is none."""
    options = getattr(engine, "kw", None)
    url = getattr(options.get("bind") if isinstance(options, dict) else engine, "url", None)
    return str(url) if full_name(type(url)) == "sqlalchemy.engine.url.URL" else ""  # SQLAlchemy hides the password


def _unknown(scheme: str) -> str:
    if not scheme:
        return "not a URL"
    if system := system_of(scheme):
        base = scheme.partition("+")[0]
        drivers = ", ".join(f"{base}+{driver}://" if driver else f"{base}://" for driver in system.drivers)
        return f"no adapter for this driver of {system.name}; use {drivers}"
    from difflib import get_close_matches  # noqa: PLC0415 - for an error only

    close = get_close_matches(scheme.partition("+")[0], schemes(), n=1, cutoff=0.8)
    return f"unknown URL scheme {scheme!r}{f', did you mean {close[0]}://' if close else ''}"


def _no_url(setting: object, role: Role) -> str:
    if role in _ENGINE_ROLES and (url := _url_of(setting)):
        kind = type(setting).__name__
        made = "create_async_engine" if kind == "Engine" else "async_sessionmaker, bound to an AsyncEngine,"
        return f"{role}='{kind}({shown(url)})' is synchronous. Create it with {made} from sqlalchemy.ext.asyncio"
    wanted = "a URL, an AsyncEngine or an async_sessionmaker" if role in _ENGINE_ROLES else "a URL"
    return f"{role} must be {wanted}, not {type(setting).__name__}"


_TELEMETRY_NAMES = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "sqs": "aws_sqs",
    "mysql": "mariadb",
    "rediss": "redis",
    "azure-queue": "azure_queue",
}


def messaging_system(place: Location) -> str:
    return place.system.name.lower() if is_engine(place.setting) else system_of_scheme(scheme_of(place.setting))


def system_of_scheme(scheme: str) -> str:
    base = scheme.partition("+")[0].lower()
    return _TELEMETRY_NAMES.get(base, base)
