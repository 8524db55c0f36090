"""Warnings about two classes whose messages have the same type, because neither has a name of its own.

Fields of the one that the other does not have are ignored, and missing ones get their defaults, so this can go unnoticed.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.model.message import CLASS, Message

_log = EventLogger(logging.getLogger("onceonly"))
_handled: dict[str, str] = {}
"""The class that handlers of this process take, by message type."""
_warned = LoggedKeys()


class BareName(NamedTuple):
    """A message type that is only the bare name of a class, and module and name of the class."""

    type: str
    class_name: str


def note_handled(endpoint: str, names: Iterable[BareName]) -> None:
    """Remember the classes of an endpoint that starts. Logs each whose type another handler of the process takes as another."""
    for type_, class_name in names:
        known = _handled.setdefault(type_, class_name)
        if known != class_name and _warned.add(type_, class_name):
            _log.warning(
                "message classes with the same name",
                extra={"endpoint": endpoint, "type": type_, "classes": f"{known} {class_name}"},
            )


def note_received(endpoint: str, own: BareName, message: Message) -> None:
    """Log once that the sender's class is another one than the handler's."""
    sent = message.extension(CLASS)
    if sent and sent != own.class_name and _warned.add(own.type, sent):
        _log.warning(
            "message has another class of the same name",
            extra={"endpoint": endpoint, "type": own.type, "id": message.id, "sent": sent, "handled": own.class_name},
        )
