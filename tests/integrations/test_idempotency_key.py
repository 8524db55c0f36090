"""The header `Idempotency-Key`: what is a key, and what is refused."""

import pytest

from onceonly.integrations.idempotency_keys import MalformedKey, read_key

UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ([], None),
        ([f'"{UUID}"'], UUID),
        ([f'  "{UUID}" '], UUID),
        ([r'"a \"quoted\" \\ word"'], 'a "quoted" \\ word'),
        (['"a, b; c"'], "a, b; c"),
        (['""'], ""),
        ([UUID], UUID),
        (["order:17/retry=1"], "order:17/retry=1"),
    ],
)
def test_a_key_is_one_string_with_or_without_its_quotes(lines: list[str], key: str | None) -> None:
    """As the structured field says it, and as many clients send it."""
    assert read_key(lines) == key


@pytest.mark.parametrize(
    "lines",
    [
        [""],
        [" "],
        ['"open'],
        ['open"'],
        [r'"bad \n escape"'],
        ['"a", "b"'],
        ['"a";expires=1'],
        ["a,b"],
        ["a b"],
        ["a;b"],
        ['"caf\xe9"'],
        ["caf\xe9"],
        ['"tab\t"'],
        ["?1\\"],
        ['"a"', '"a"'],
    ],
)
def test_what_two_readers_could_read_differently_is_refused(lines: list[str]) -> None:
    """Lists, parameters, the header twice, characters that no string has."""
    with pytest.raises(MalformedKey, match="Idempotency-Key"):
        read_key(lines)
