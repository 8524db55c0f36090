"""From `module:attribute` on the command line to the endpoint it names."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError


def load(name: str) -> Endpoint:
    """Import one endpoint. The working directory is searched first. Raises SetupError, saying what the name should be."""
    if "@" in name or "://" in name:  # not shown: a URL may hold a password
        raise SetupError("a URL is not an endpoint name: write module:attribute, such as shop:shop")
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise SetupError(f"{name!r} is not an endpoint name: write module:attribute, such as shop:shop")
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if isinstance(found, Endpoint):
        return found
    there = sorted(key for key, value in vars(module).items() if isinstance(value, Endpoint))
    hint = f"it has {', '.join(f'{module_name}:{key}' for key in there)}" if there else "the module has no endpoint"
    problem = "is not an Endpoint" if hasattr(module, attribute) else "does not exist"
    raise SetupError(f"{name!r} {problem} in module {module_name!r}: {hint}")


def load_all(names: Sequence[str]) -> tuple[Endpoint, ...]:
    """Import several endpoints. Raises SetupError also when two of them have one name."""
    endpoints = tuple(load(name) for name in names)
    seen = [endpoint.name for endpoint in endpoints]
    twice = sorted({name for name in seen if seen.count(name) > 1})
    if twice:
        raise SetupError(f"two endpoints are named {', '.join(twice)}: list each endpoint once, and give each a unique name")
    return endpoints


def _import(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except SetupError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise SetupError(f"module {name!r} was not found in {here} or on the Python path") from error
        raise SetupError(f"module {name!r} could not be imported: {error}") from error
    except Exception as error:  # a user's module may raise anything when it is imported
        place = _place(error)
        raise SetupError(f"module {name!r} could not be imported: {type(error).__name__}: {error}{place}") from error


def _place(error: BaseException) -> str:
    """Name the line of the user's file that raised; empty if it is not known."""
    if isinstance(error, SyntaxError):
        return ""  # its own text names the line
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(Path.cwd()) and file.suffix == ".py":
            place = f" ({file.relative_to(Path.cwd())}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
