"""What an endpoint sent, compared by a test with the objects that its handlers sent."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from onceonly.formats.bodies import BodyError, codec_for, encode_body, is_anonymous, type_name
from onceonly.model.message import EXPIRES, Message, Send

_Body = TypeVar("_Body")


class Sent:
    """One sent message. Equal to a body that is encoded in the same way: `t.sent == [OrderPlaced("1")]`.

    `to` is the endpoint of a command, empty for an event, or the text of another destination, such as `str(Queue("Sales"))`.
    `due` is the earliest time of delivery, in milliseconds since 1970; 0 means at once. `headers` are those of the application,
    by name. `key` is its group or partition, or empty. `expires` is the time from which on it is not handled any more, in
    milliseconds since 1970; 0 means never. `copies` is the number of times it was sent, always with the same id and body.
    """

    def __init__(self, send: Send, copies: int) -> None:
        self.message: Message = send.message
        self.type = send.message.type
        self.to = send.to
        self.due = send.due
        self.headers = dict(send.message.headers)
        self.key = send.message.partition_key
        self.expires = send.message.expires
        self.copies = copies

    def read(self, kind: type[_Body]) -> _Body:
        """Return the body as an object of this class. Raises BodyError if it cannot be decoded."""
        body: _Body = codec_for(kind).decode(self.message.body)
        return body

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sent):
            return self.message == other.message and self.to == other.to
        try:
            body, _ = encode_body(other)
        except BodyError:
            return False
        if is_anonymous(type(other)):
            return bool(_plain(body) == _plain(self.message.body))
        return (self.type, self.message.body) == (type_name(type(other)), body)

    def __hash__(self) -> int:
        return hash(self.message.identity)

    def __repr__(self) -> str:
        to = f" to {self.to}" if self.to else ""
        options = f" headers={self.headers}" if self.headers else ""
        options += f" key={self.key!r}" if self.key else ""
        options += f" expires={self.message.extension(EXPIRES)}" if self.expires else ""
        return f"<{self.type}{to}{options} {self.message.body[:200].decode(errors='replace')}>"


def _plain(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body


def collect(sends: Iterable[Send]) -> list[Sent]:
    """Return one `Sent` for each identity, in the order they were first sent.

    Raises AssertionError when two sends with one identity differ: every dispatch of a record must be a true duplicate.
    """
    first: dict[tuple[str, str], Send] = {}
    copies: dict[tuple[str, str], int] = {}
    for send in sends:
        identity = send.message.identity
        if first.setdefault(identity, send) != send:
            raise AssertionError(f"two different messages were sent with one id: {first[identity]} and {send}")
        copies[identity] = copies.get(identity, 0) + 1
    return [Sent(send, copies[identity]) for identity, send in first.items()]
