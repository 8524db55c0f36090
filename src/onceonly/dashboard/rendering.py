"""Pages as HTML or JSON. Every expression of a template is escaped, and its invisible characters are made visible."""

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct
from starlette.responses import Response

from onceonly.dashboard.text import age, clock, duration, instant, machine_time, number, size, visible
from onceonly.formats.escaping import to_json

THEMES = ("system", "light", "dark")
THEME_COOKIE = "onceonly_theme"
STATIC = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Page(Struct, kw_only=True):
    """What a page shows. `data` is what JSON returns, and what the template gets. `view` is for the template only.

    `every` is the period in seconds in which an open page is refreshed; 0 for never.
    """

    template: str
    title: str
    data: Mapping[str, Any] = {}
    view: Mapping[str, Any] = {}
    every: int = 0
    status: HTTPStatus = HTTPStatus.OK


class Verbatim(str):
    """Text that a form sends back, so its characters stay as they are. It is escaped like all text."""

    __slots__ = ()


class Frame(NamedTuple):
    """What is around a page: the prefix, the theme, the user with the roles, links to the pages, and the tokens of forms.

    `exports` is whether the user can export letters.
    """

    base: str
    path: str
    theme: str
    user: str
    roles: frozenset[str]
    nav: tuple[tuple[str, str], ...]
    token: Any
    now: int
    exports: bool = False


def render_html(page: Page, frame: Frame) -> Response:
    """Render a page as HTML."""
    context = {**page.data, **page.view, "page": page, "frame": frame, "base": frame.base, "now": frame.now}
    text = _environment().get_template(page.template).render(context)
    return Response(text, status_code=page.status, media_type="text/html; charset=utf-8")


def render_json(page: Page) -> Response:
    """Render the data of a page as JSON."""
    text = to_json(page.data, indent=2) + "\n"
    return Response(text, status_code=page.status, media_type="application/json")


@cache
def static_file(name: str) -> bytes:
    """Read the style sheet or the script."""
    return files("onceonly.dashboard").joinpath("static", name).read_bytes()


def _finalize(value: Any) -> Any:
    """Make the characters of text visible, whatever the template does with it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup | Verbatim) else value


def _segment(value: str) -> str:
    """Write a value as one segment of a path."""
    return quote(value, safe="")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("onceonly.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"age": age, "clock": clock, "instant": instant, "iso": machine_time, "number": number, "size": size}
    environment.filters.update(filters | {"duration": duration, "segment": _segment})
    environment.globals["THEMES"] = THEMES
    return environment
