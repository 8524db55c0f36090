"""What a setting for a place names: a URL, or a user's own engine. No driver is imported to find that out."""

import re
from difflib import get_close_matches
from typing import Any

from onceonly.model.errors import DriverMissing, SetupError
from onceonly.systems import Offer, Role, System, driver_of, full_name, system_of, systems

_ENGINES = frozenset({"store", "dead_letters"})
_OBJECTS = frozenset({"sqlalchemy.ext.asyncio.engine.AsyncEngine", "sqlalchemy.ext.asyncio.session.async_sessionmaker"})
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case; empty when there is none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def shown(url: object) -> str:
    """Return a URL as messages may show it: without user, password and options."""
    if not isinstance(url, str):
        return type(url).__name__
    scheme, separator, rest = url.partition("://")
    if not separator:
        return f"{scheme_of(url)}:..." if scheme_of(url) else "(no URL)"
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    if "@" in path:  # an unescaped slash in a password: show nothing of it
        return f"{scheme}://..."
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def url_problem(setting: object, role: Role) -> str | None:
    """Return what is wrong with a setting for a role, as far as its driver is not needed to find out, or None."""
    if not isinstance(setting, str):
        return None if role in _ENGINES and is_engine(setting) else _no_url(setting, role)
    scheme = scheme_of(setting)
    if driver_of(scheme) is not None:
        return None
    return f"{role}={shown(setting)!r}: {_unknown(scheme)}; there is {working(role)}"


def require(setting: object, role: Role) -> None:
    """Check that a setting can be used for a role, and that its driver is installed. Raises SetupError, DriverMissing."""
    if problem := url_problem(setting, role):
        raise SetupError(problem)
    if not isinstance(setting, str):
        return
    name = scheme_of(setting)
    system, driver = system_of(name), driver_of(name)
    if system is None or driver is None:
        raise SetupError(f"{role}={shown(setting)!r}: {_unknown(name)}")
    adapter = "" if system.serves(role) else f"this version of onceonly has no {role} for {name}://; there is {working(role)}"
    if missing := driver.missing():
        install = f"pip install 'onceonly[{driver.extra}]'" if driver.extra else "pip install onceonly"
        reason = f"{role}={shown(setting)!r}: its driver, {' and '.join(missing)}, is not installed: {install}"
        raise DriverMissing(f"{reason}; and {adapter}" if adapter else reason)
    if adapter:
        raise SetupError(f"{role}={shown(setting)!r}: {adapter}")


def working(role: Role) -> str:
    """List the schemes that serve a role, for error messages."""
    return ", ".join(f"{scheme}://" for scheme, system in systems().items() if system.serves(role))


def has_no_tables(url: str) -> bool:
    """Return whether a URL names a system that is not a SQL database."""
    system = system_of(scheme_of(url))
    return system is not None and system.dialect is None


def keeps_documents(setting: object) -> bool:
    """Return whether a setting is the URL of a document service."""
    system = place_system(setting)
    return system is not None and system.keeps_documents


def is_in_process(setting: object) -> bool:
    """Return whether a setting is the URL of a system in this process's memory."""
    system = place_system(setting)
    return system is not None and system.in_process


def place_system(setting: object) -> System | None:
    """Return the system that a URL or an engine names, or None."""
    return system_of(scheme_of(setting) if isinstance(setting, str) else _driver_name(setting))


def offer_of(store: object) -> Offer:
    """Return what handlers may ask a store for."""
    name = scheme_of(store) if isinstance(store, str) else _driver_name(store)
    system, driver = system_of(name), driver_of(name)
    if system is None:
        return Offer()
    connection = frozenset({driver.connection}) if driver is not None and driver.connection else frozenset[str]()
    return system.offer._replace(asynchronous=system.offer.asynchronous | connection)


def is_engine(setting: object) -> bool:
    """Return whether this is an AsyncEngine or an async_sessionmaker. SQLAlchemy is not imported."""
    return any(full_name(each) in _OBJECTS for each in type(setting).__mro__)


def _driver_name(store: Any) -> str:
    engine = store.kw.get("bind") if hasattr(store, "kw") else store  # a session factory's
    return str(getattr(getattr(engine, "url", None), "drivername", ""))


def _unknown(scheme: str) -> str:
    if not scheme:
        return "this is no URL"
    if system := system_of(scheme):
        base = scheme.partition("+")[0]
        drivers = ", ".join(f"{base}+{driver}://" if driver else f"{base}://" for driver in system.drivers)
        return f"there is no adapter for this driver of {system.name}; write {drivers}"
    close = get_close_matches(scheme, systems(), n=1, cutoff=0.8)
    return f"nobody knows the URL scheme {scheme!r}{f'; did you mean {close[0]}://' if close else ''}"


def _no_url(setting: object, role: Role) -> str:
    if full_name(type(setting)) == "sqlalchemy.engine.base.Engine":
        return f"{role} is a synchronous Engine; make it with sqlalchemy.ext.asyncio.create_async_engine"
    wanted = "a URL, an AsyncEngine or an async_sessionmaker" if role in _ENGINES else "a URL"
    return f"{role} must be {wanted}, not {type(setting).__name__}"
