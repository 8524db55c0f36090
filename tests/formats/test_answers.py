"""Answers of transactions: what clients get is what the caller set, in JSON's own types, or the caller gets an error."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from onceonly.formats.bodies import BodyError, decode_answer, encode_answer


@dataclass
class Receipt:
    """An answer with fields."""

    number: str
    total: float = 0.0


class Secret(pydantic.BaseModel):
    """An answer that would be stored as asterisks."""

    token: pydantic.SecretStr


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ({"a": [1, None, "x", 1.5]}, {"a": [1, None, "x", 1.5]}),
        ((1, 2), [1, 2]),
        ("text", "text"),
        (5, 5),
        (b"\xff", b"\xff"),
        (Receipt("1"), {"number": "1", "total": 0.0}),
        (None, None),
    ],
)
def test_an_answer_is_read_as_it_was_set(answer: Any, read: Any) -> None:
    """An object of a class is a dict for clients."""
    assert decode_answer(encode_answer(answer)) == read


@pytest.mark.parametrize(
    "answer",
    [
        {"total": float("nan")},
        [float("inf")],
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
        {1: "a"},
        Receipt("1", float("nan")),
        Receipt(5),  # type: ignore[arg-type]
        Secret(token=pydantic.SecretStr("x")),
    ],
)
def test_an_answer_that_would_change_is_refused(answer: Any) -> None:
    """Every later request with the key would get the other one."""
    with pytest.raises(BodyError):
        encode_answer(answer)
