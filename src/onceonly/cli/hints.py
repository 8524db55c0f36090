"""Advice that can be pasted: the commands in an error, about the endpoint or the place that this command is about.

What raises an error knows no command line, so it names `module:endpoint`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress

from onceonly.cli.targets import load
from onceonly.config.location import shown
from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError
from onceonly.systems.urls import login_problem

ANY = "module:endpoint"

_ADVICE = re.compile(r"`onceonly (\w+)[^`]*`")
_ENDPOINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SECRET = re.compile("pass|pwd|secret|token|key|sig", re.IGNORECASE)
_OPTIONS = {"schema": ("--store", "--transport"), "topology": ("--transport",)}
"""The options that lead a command elsewhere than the endpoint itself does."""


def pasteable(text: str, arguments: Sequence[str]) -> str:
    """Insert what a command was given in place of `module:endpoint` into the commands that a text names.

    A URL that may hold a secret is not repeated: whoever reads it writes it again.
    """
    if ANY not in text:
        return text
    endpoint = _chosen([each for each in arguments if _ENDPOINT.fullmatch(each)], text)

    def completed(found: re.Match[str]) -> str:
        command, name = found[0], found[1]
        given = [part for option in _OPTIONS.get(name, ()) for part in _passed_values(option, arguments)]
        if endpoint:
            return command.replace(ANY, shlex.join([endpoint, *given]))
        url = next(_urls(arguments), "") if name == "schema" else ""
        return command.replace(ANY, shlex.quote(url)) if url else command

    return _ADVICE.sub(completed, text)


def _chosen(names: Sequence[str], text: str) -> str:
    """Choose the one of several endpoints that a text is about; the first if that is not known."""
    for name in names if len(names) > 1 else ():
        with suppress(SetupError):
            endpoint = load(name)
            if f"endpoint {endpoint.name!r}" in text or any(shown(place) in text for place in _places(endpoint)):
                return name
    return next(iter(names), "")


def _places(endpoint: Endpoint) -> Iterator[object]:
    settings = endpoint.settings
    yield settings.store
    if settings.transport is not None:
        yield settings.transport
    if settings.dead_letters is not None:
        yield settings.dead_letters
    yield from (place for place in (settings.plan.marks, settings.plan.tokens) if place is not None)


def _passed_values(option: str, arguments: Sequence[str]) -> tuple[str, ...]:
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if before == option:
            return option, _harmless(argument)
        if argument.startswith(f"{option}="):
            return option, _harmless(argument.partition("=")[2])
    return ()


def _urls(arguments: Sequence[str]) -> Iterator[str]:
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if "://" in argument and not argument.startswith("-") and before not in _OPTIONS["schema"]:
            yield _harmless(argument)


def _harmless(url: str) -> str:
    return "URL" if "@" in url or login_problem(url) or _SECRET.search(url.partition("?")[2]) else url
