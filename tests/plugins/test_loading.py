"""One URL loads one system. Plug-ins that cannot be used, and URLs that name none, are errors that say what to do."""

from importlib.metadata import distribution

import pytest

from onceonly.systems import GROUP, schemes, system_of, systems
from tests.plugins.packages import Register, Shell

OWN = {point.name: point.value for point in distribution("onceonly").entry_points if point.group == GROUP}
DRIVERS = sorted(
    {package for scheme in OWN for driver in systems()[scheme].drivers.values() for package in driver.packages} - {"sqlalchemy"}
)
LOADED = """
import sys
def loaded(name):
    return {each.removeprefix(name) for each in sys.modules if each.startswith(name)}
"""
USED = """
import asyncio
from onceonly import Endpoint, SetupError

async def main(**urls):
    shop = Endpoint("shop", **{"store": "memory://m", "transport": "memory://m"} | urls)
    @shop.handler(type="x")
    async def handle(message: dict) -> None: ...
    async with shop.running():
        print("it runs")

try:
    asyncio.run(main(URLS))
except SetupError as error:
    print(type(error).__name__, error)
"""


def used(shell: Shell, **urls: str) -> str:
    """Start an endpoint with these URLs, elsewhere; gives the error."""
    return shell.python(USED.replace("URLS", ", ".join(f"{name}={url!r}" for name, url in urls.items())))


def test_importing_the_library_loads_no_system(bare: Shell) -> None:
    """Nor a driver."""
    program = f"{LOADED}import onceonly\nprint(loaded('onceonly.adapters'), set({DRIVERS!r}) & set(sys.modules))"
    assert bare.python(program) == "set() set()\n"


URLS = {
    "azure-blob": "azure-blob://account/container",
    "azure-queue": "azure-queue://account/prefix",
    "azure-table": "azure-table://account/table",
    "cosmos": "cosmos://host/database/container",
    "folder": "folder:///path",
    "kafka": "kafka://host",
    "nats": "nats://host",
    "redis": "redis://host/0",
    "rediss": "rediss://host/0",
    "sqs": "sqs://eu-central-1",
    "servicebus": "servicebus://name.servicebus.windows.net",
}


@pytest.mark.parametrize("scheme", sorted(OWN))
def test_one_url_loads_one_system_and_no_driver(bare: Shell, scheme: str) -> None:
    """Until it is opened."""
    system = system_of(scheme)
    assert system is not None
    role = "store" if system.serves("store") else "transport" if system.serves("transport") else "blobs"
    urls = {"store": "memory://m", "transport": "memory://m", role: URLS.get(scheme, f"{scheme}://host/path")}
    program = f"""{LOADED}
import onceonly
onceonly.Endpoint("shop", **{urls!r})
assert not set({DRIVERS!r}) & set(sys.modules)
print(*sorted({{each.partition(".")[0] for each in loaded("onceonly.adapters.")}} - {{"memory"}}))
"""
    own = OWN[scheme].partition(":")[0].split(".")[2]
    assert set(bare.python(program).split()) == {own} - {"memory"}


def test_a_plug_in_is_loaded_by_its_url_and_opened_later(shell: Shell) -> None:
    """Of the toy's two modules, one is imported when the endpoint is made, and one when it is opened."""
    program = f"""{LOADED}
import asyncio, onceonly
from onceonly.assembly.documents import create
assert not loaded("onceonly_toy")
shop = onceonly.Endpoint("shop", store="toy:///a.toy", transport="memory://m")
print(sorted(loaded("onceonly_toy")))
asyncio.run(create({(shell.folder / "a.toy").as_uri().replace("file:", "toy:")!r}))
print(sorted(loaded("onceonly_toy")))
"""
    assert shell.python(program) == "['']\n['', '.file']\n"


def test_a_plug_in_that_cannot_be_imported_names_its_package(bare: Shell, register: Register) -> None:
    """Whatever it raises. Other systems are not affected, and the lists in error messages leave it out."""
    register("onceonly-lost", "lost", "import nothing_of_this_name")
    register("onceonly-odd", "odd", "1 / 0")
    register("onceonly-empty", "empty", "")
    error = used(bare, store="lost://x")
    assert "cannot load the plug-in 'onceonly_lost:SYSTEM' of the package onceonly-lost, which provides lost:// URLs" in error
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in error
    assert "ZeroDivisionError: division by zero" in used(bare, store="odd://x")
    assert "AttributeError" in used(bare, store="empty://x")
    assert "it runs" in used(bare)
    unknown = used(bare, store="unheard-of://x")
    assert "memory://" in unknown
    assert "lost://" not in unknown


def test_a_plug_in_must_be_a_system(bare: Shell, register: Register) -> None:
    """Anything else is refused, with its type."""
    register("onceonly-dict", "dict", "SYSTEM = {}")
    error = used(bare, store="dict://x")
    assert "must be an onceonly.systems.System, not a builtins.dict" in error
    assert "package onceonly-dict" in error


def test_two_packages_for_one_scheme_are_refused(bare: Shell, register: Register) -> None:
    """Which one would be used, nobody could tell."""
    register("onceonly-one", "same", "")
    register("onceonly-two", "same", "")
    assert "several packages provide same:// URLs: onceonly-one and onceonly-two. Uninstall" in used(bare, store="same://x")


def test_a_missing_driver_of_a_plug_in_is_installed_from_its_package(bare: Shell, register: Register) -> None:
    """Not from an extra of this library."""
    module = "from onceonly.systems import *\nDRIVER = Driver(('nothing',), 'onceonly-far[driver]')\n"
    system = "SYSTEM = System(name='Far', drivers={'': DRIVER}, documents=lambda: None)"
    register("onceonly-far", "far", module + system)
    error = used(bare, store="far://x")
    assert "DriverMissing" in error
    assert "nothing, is not installed: pip install 'onceonly-far[driver]'" in error


@pytest.mark.parametrize(
    ("role", "url", "words"),
    [
        ("store", "postgres://h/d", "did you mean postgresql://"),
        ("store", "postgres+asyncpg://h/d", "did you mean postgresql://"),
        ("store", "postgresql+pg8000://h/d", "use postgresql://, postgresql+asyncpg://, postgresql+psycopg://"),
        ("store", "toy+sqlite://h/d", "this driver of toy file; use toy://"),
        ("store", "toys:///x", "did you mean toy://"),
        ("transport", "toy:///x", "no transport for toy://; there is amqp://"),
        ("blobs", "redis://h", "no blobs for redis://; there is azure-blob://, folder://, memory://, s3://, toy://"),
    ],
)
def test_a_url_that_cannot_be_used_is_an_error(shell: Shell, role: str, url: str, words: str) -> None:
    """It says what to write instead."""
    assert words in used(shell, **{role: url})


def test_the_schemes_are_listed_without_loading_them() -> None:
    """All that this library has, at least."""
    assert set(OWN) <= set(schemes())
