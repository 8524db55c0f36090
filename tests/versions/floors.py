"""The lowest and the newest versions of what the library needs, each in an environment of its own.

`pyproject.toml` declares the lowest version of each dependency: `asyncpg>=0.31`. Nothing else says that such a version works.
"""

import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

NOT_NEEDED = ("all", "bench", "dev")
"""The extras that name other extras, and tools."""
TOOLS = (
    "aio-pika",
    "cloudevents",
    "confluent-kafka",
    "django-tasks",
    "griffelib",
    "gunicorn",
    "hypothesis",
    "jinja2",
    "opentelemetry-sdk",
    "pymysql",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "python-multipart",
    "pyyaml",
    "setuptools",
    "structlog",
    "uvicorn",
)
"""What the tests themselves need, of the extra `dev`, in the versions of constraints.txt."""
UNPINNED = ("aio-pika", "opentelemetry-sdk")
"""Those whose versions follow from a lowest one."""


def declared(project: Path = ROOT / "pyproject.toml") -> list[Requirement]:
    """Return what the library and its extras need, each distribution once."""
    read = tomllib.loads(project.read_text())["project"]
    extras = [words for name, words in read["optional-dependencies"].items() if name not in NOT_NEEDED]
    found = [Requirement(each) for words in (read["dependencies"], *extras) for each in words]
    return list({str(each): each for each in found}.values())


def lowest(requirements: Iterable[Requirement]) -> list[str]:
    """Return these in their lowest versions, as `name==version`. Raises ValueError for one that declares none."""
    pins: dict[str, str] = {}
    for each in requirements:
        floors = [it.version for it in each.specifier if it.operator == ">="]
        if len(floors) != 1:
            raise ValueError(f"{each} declares {len(floors)} lowest versions: write name>=version")
        extras = f"[{','.join(sorted(each.extras))}]" if each.extras else ""
        name = canonicalize_name(each.name)
        pin = f"{name}{extras}=={floors[0]}"
        if pins.setdefault(name, pin) != pin:
            raise ValueError(f"{name} has two lowest versions, {pins[name]} and {pin}")
    return list(pins.values())


def pinned(constraints: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Return the versions of constraints.txt that are for this version of Python, by their names."""
    lines = [line for line in constraints.read_text().splitlines() if line and not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    fitting = [each for each in found if each.marker is None or each.marker.evaluate()]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in fitting}


def differences(folder: Path, pins: dict[str, str]) -> Sequence[str]:
    """Return what is installed in a folder of packages in another version than that of constraints.txt, in order."""
    found: Iterable[Distribution] = distributions(path=[str(folder)])
    versions = {canonicalize_name(each.name): each.version for each in found}
    return [
        f"{name} {pins[name]} -> {versions[name]}" for name in sorted(pins.keys() & versions) if versions[name] != pins[name]
    ]
