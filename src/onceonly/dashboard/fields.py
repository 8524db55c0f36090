"""Attributes and headers of a message in a form: which of them an operator can change, and what was changed."""

from collections.abc import Callable

from msgspec import UNSET, Struct, UnsetType

from onceonly.dashboard.bodies import is_secret
from onceonly.dashboard.text import visible
from onceonly.model.headers import MOST_HEADER_BYTES
from onceonly.model.message import Headers, Message
from onceonly.operations.editing import Edit

LABELS = {"type": "Type", "subject": "Subject", "datacontenttype": "Content type"}
"""The attributes that can be changed, with their labels. Source, id, time, token and the other extensions are locked."""
NAMES = {"type": "message_type", "subject": "subject", "datacontenttype": "datacontenttype"}
"""Their names in the form: `type` is the filter of a group."""


class FormFields(Struct, frozen=True, kw_only=True):
    """What a form has in addition to the body.

    `attributes` are the values by name. One that pages hide, or that a form cannot keep, is not there. `headers` are lines of
    names and values, `locked` are headers that stay as they are for the same reasons.
    """

    attributes: dict[str, str]
    headers: str
    locked: Headers

    @property
    def text(self) -> str:
        """All of it as lines, to be compared."""
        return "\n".join([*(f"{LABELS[name].lower()}: {value}" for name, value in self.attributes.items()), self.headers])

    def sent(self, sent: Callable[[str, str], str]) -> "FormFields":
        """Return the fields with the values of a form. A field that the form does not have stays as it is."""
        attributes = {name: sent(NAMES[name], value).strip() for name, value in self.attributes.items()}
        lines = sent("headers", self.headers).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        headers = "\n".join(line.strip() for line in lines if line.strip())
        return FormFields(attributes=attributes, headers=headers, locked=self.locked)


def fields_of(message: Message, shown: Message) -> FormFields:
    """Return the fields of a message. `shown` is what may be shown of it."""
    attributes = {
        name: value
        for name in LABELS
        if _fits(value := str(getattr(message, name))) and value == getattr(shown, name)  # what `redact` changed is hidden
    }
    free = tuple(pair for pair in message.headers if pair in shown.headers and not is_secret(pair[0]) and _fits_line(pair))
    text = "\n".join(f"{name}: {value}" for name, value in free)
    if len(text.encode()) > MOST_HEADER_BYTES:
        free, text = (), ""
    return FormFields(attributes=attributes, headers=text, locked=tuple(pair for pair in message.headers if pair not in free))


def edit_of(before: FormFields, after: FormFields, body: bytes) -> Edit:
    """Return the edit that a form asks for. Raises ValueError, with the reason."""
    attributes = {name: value if value != before.attributes[name] else UNSET for name, value in after.attributes.items()}
    headers: Headers | UnsetType = UNSET
    if after.headers != before.headers:
        headers = (*after.locked, *map(_pair, after.headers.split("\n") if after.headers else ()))
        own = {name.lower() for name, _ in headers[len(after.locked) :]}
        if taken := sorted({name for name, _ in after.locked if name.lower() in own}):
            raise ValueError(f"the header {taken[0]!r} is hidden, so the form cannot change it")
    return Edit(body=body, headers=headers, **attributes)


def _fits(value: str) -> bool:
    return value == value.strip() and "\n" not in value and visible(value) == value


def _fits_line(pair: tuple[str, str]) -> bool:
    name, value = pair
    return bool(name) and ":" not in name and _fits(name) and _fits(value)


def _pair(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError(f"{line!r:.100} is not a header: write `name: value`, one on each line")
    return name.strip(), value.strip()
