"""Pages as HTML or JSON, and how they show text, numbers and times. Every expression of a template is escaped."""

import re
import unicodedata
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from onceonly.model.escaping import to_json
from onceonly.model.wording import in_words
from onceonly_dashboard.page_request import THEMES, PageContent, PageRequest

_CONTROL_PICTURES = 0x2400
_DELETE, _DELETE_PICTURE = 0x7F, "\N{SYMBOL FOR DELETE}"
# Characters that change how others are shown, or that cannot be seen: controls, formats, surrogates, private, unassigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\t")
_PLAIN = re.compile(r"[\t\n\x20-\x7e]*")
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds since 1970: the years 1 to 9999


class Verbatim(str):
    """Text that a form sends back, so its characters stay as they are. It is escaped like all text."""

    __slots__ = ()


def render_html(page: PageContent, request: PageRequest) -> Response:
    context = {**page.data, **page.view, "page": page, "request": request, "base": request.base, "now": request.now}
    text = _environment().get_template(page.template).render(context)
    return Response(text, status_code=page.status, media_type="text/html; charset=utf-8")


def render_json(page: PageContent) -> Response:
    text = to_json(page.data, indent=2) + "\n"
    return Response(text, status_code=page.status, media_type="application/json")


def _finalize(value: Any) -> Any:
    """Make the characters of text visible, whatever the template does with it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup | Verbatim) else value


def _segment(value: str) -> str:
    return quote(value, safe="")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("onceonly_dashboard"),
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


def visible(text: str) -> str:
    """Replace characters that cannot be seen, or that move others: ESC by its picture, U+202E by its number in brackets.

    Line feeds and tabs stay. A carriage return before a line feed stays hidden.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_shown, text.replace("\r\n", "\n")))


def _shown(character: str) -> str:
    if character in _KEPT or (character.isascii() and character.isprintable()):
        return character
    code = ord(character)
    if code < 32:  # noqa: PLR2004 - C0 controls have pictures
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return _DELETE_PICTURE
    hidden = unicodedata.category(character) in _HIDDEN
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{code:04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}" if hidden else character


def number(value: float) -> str:
    """Write a number with thousands separators; decimals only below 100."""
    if isinstance(value, int) or value == int(value) or abs(value) >= 100:  # noqa: PLR2004 - three digits are enough
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def age(seconds: float) -> str:
    """Write an age in its largest unit or two; whole seconds below a minute, and tenths of what is not whole below 10."""
    if 0 < seconds < 10 and seconds != int(seconds):  # noqa: PLR2004 - two digits are enough
        return f"{max(seconds, 0.1):.1f} s"
    return f"{max(0, int(seconds))} s" if seconds < 60 else in_words(seconds)  # noqa: PLR2004 - a minute


def duration(microseconds: int) -> str:
    """Write the duration of a handler: milliseconds below a second, else as an age."""
    if microseconds < 1_000_000:  # noqa: PLR2004 - a second
        return f"{number(microseconds / 1000)} ms"
    seconds = microseconds / 1_000_000
    return f"{seconds:.1f} s" if seconds < 60 else in_words(seconds)  # noqa: PLR2004 - a minute


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - the next unit is shorter
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def instant(milliseconds: int) -> str:
    """Write an instant in UTC: 2026-11-22 12:01:07Z. The nearest year from 1 to 9999."""
    return f"{_utc(milliseconds):%Y-%m-%d %H:%M:%S}Z".rjust(20, "0")


def clock(milliseconds: int) -> str:
    """Write the time of day of an instant, in UTC: 12:01."""
    return f"{_utc(milliseconds):%H:%M}"


def machine_time(milliseconds: int) -> str:
    """Write an instant for the `datetime` attribute."""
    return _utc(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(min(max(milliseconds // 1000, _FIRST), _LAST), UTC)
