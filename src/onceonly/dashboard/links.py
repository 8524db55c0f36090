"""Links to other tools, such as a trace viewer: from templates in the settings, with percent-encoded values."""

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any
from urllib.parse import quote

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError

FIELDS = ("endpoint", "source", "id", "type", "key", "trace")
_URL = re.compile(r"https?://[^\s/{}@]+(/|$)")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def check_links(links: Any) -> dict[str, str]:
    """Check `links=`: names with templates of URLs. Raises SetupError."""
    if not isinstance(links, Mapping):
        raise SetupError(f'links must map names to URLs, such as {{"Trace": "https://traces/{{trace}}"}}, not {links!r:.80}')
    checked: dict[str, str] = {}
    for name, template in links.items():
        fields = {field for _, field, _, _ in Formatter().parse(str(template)) if field is not None}
        if not _URL.match(str(template)) or not fields <= set(FIELDS):
            raise SetupError(
                f"links[{name!r}] = {template!r}: write an http or https URL whose fields are among {', '.join(FIELDS)}, "
                "none of them in the host"
            )
        checked[str(name)] = str(template)
    return checked


def links_of(letter: DeadLetter, links: Mapping[str, str], key: str) -> list[tuple[str, str]]:
    """Return names and URLs for what may be shown of a dead letter. A link that needs what it does not have is left out."""
    message = letter.message
    values = {"endpoint": letter.endpoint, "key": key}
    if message is not None:
        values |= {"source": message.source, "id": message.id, "type": message.type}
    if trace := _TRACE.fullmatch(_traceparent(letter)):
        values["trace"] = trace[1]
    encoded = {name: quote(value, safe="", errors="surrogatepass") for name, value in values.items()}
    return [
        (name, template.format_map(encoded))
        for name, template in links.items()
        if all(field in encoded for _, field, _, _ in Formatter().parse(template) if field is not None)
    ]


def _traceparent(letter: DeadLetter) -> str:
    message = letter.message
    own = message.extension("traceparent") if message is not None else ""
    return own or next((value for name, value in letter.headers if name.lower() == "traceparent"), "")
