"""`partition_key=`: which partition of the service the documents of a message are in."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from onceonly.endpoint.failures import storable
from onceonly.endpoint.signatures import words
from onceonly.formats.bodies import BodyError, Codec, codec_for, is_anonymous
from onceonly.formats.entities import LONGEST_UNIT, fields_of
from onceonly.formats.partitions import MOST_VALUES, partition_text
from onceonly.formats.third_party import own_body
from onceonly.model.errors import USERS_ERRORS, error_text
from onceonly.model.message import Message, Unreadable

FieldRule = str | Callable[[Any], object]
"""The field of a message that has a value, or what tells the value from the message."""
PartitionRule = FieldRule | Sequence[FieldRule]
"""The value of a partition key; several where the key is hierarchical."""
DECODED = "decoded"
"""Where a message keeps its body between being read and being handled."""


class PartitionPlan(NamedTuple):
    """How one handler finds the partition of a message."""

    body: Codec
    rules: tuple[FieldRule, ...]

    def of(self, body: object) -> str:
        """Return what its unit begins with. Raises BodyError, and what a function of the user's raises."""
        found = partition_text([value_of(rule, body) for rule in self.rules])
        if len(found.encode()) > LONGEST_UNIT:
            raise BodyError(f"its partition key is too long; the limit is {LONGEST_UNIT} bytes")
        return found

    def place(self, message: Message) -> Message | Unreadable:
        """Return the message with its unit: the partition."""
        return placed(message, self.body, self.of, "partition")


def placed(message: Message, codec: Codec, unit: Callable[[Any], str], what: str) -> Message | Unreadable:
    """Return the message with its unit, and its body next to it, or why there is none. `what` is found from the body."""
    try:
        body = codec.decode(own_body(message))
        found = unit(body)
    except (BodyError, ValueError) as error:
        return Unreadable(reason=storable(f"{message.type or 'the message'}: {error}"), message=message)
    except USERS_ERRORS as error:  # a validator or a key function of the user's
        return Unreadable(reason=storable(f"cannot determine the key of its {what}: {error_text(error)}"), message=message)
    known = replace(message, unit=found)
    known.__dict__.update(message.__dict__)
    known.__dict__[DECODED] = body
    return known


def value_of(rule: FieldRule, body: Any) -> object:
    if callable(rule):
        return rule(body)
    return body.get(rule) if isinstance(body, dict) else getattr(body, rule)


def plan_partition(rule: Any, message: Any, *, is_offered: bool, wrong: list[str]) -> PartitionPlan | None:
    """Plan how a handler of this class of message finds the partition; adds what is wrong."""
    rules = tuple(rule) if isinstance(rule, list | tuple) else (rule,)
    problems = [problem for each in rules if (problem := field_problem(each, message, "partition_key"))]
    if not 1 <= len(rules) <= MOST_VALUES:
        problems.append(f"partition_key= must have 1 to {MOST_VALUES} values, not {len(rules)}")
    if not is_offered:
        problems.append("partition_key= needs a document store that writes several documents at once, and this one does not")
    wrong += problems
    return None if problems else PartitionPlan(codec_for(message), rules)


def field_problem(rule: FieldRule, message: Any, option: str = "key") -> str:
    """Return why a rule cannot tell a value from messages of this class, or ""."""
    if not (isinstance(rule, str) or callable(rule)):
        return f"{option}= must be the name of a field of the message, or a function of it, not {rule!r}"
    if callable(rule):
        return ""
    if is_anonymous(message) and message is not dict and getattr(message, "__origin__", None) is not dict:
        return f"a message of type {words(message)} has no fields: set {option}= to a function of the message"
    if is_anonymous(message) or rule in fields_of(message) or hasattr(message, rule):
        return ""
    return f"{option}={rule!r}: {words(message)} has no such field; it has {', '.join(fields_of(message)) or 'none'}"
