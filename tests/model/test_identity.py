"""Identity and the hashes derived from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity, claim_key, fingerprint, instant_in, outgoing_id, without_instant
from onceonly.model.message import Message

names = st.text(max_size=20)


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_claim_keys_are_equal_only_for_equal_parts(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """Length prefixes keep ("ab", "c") and ("a", "bc") apart."""
    keys = [claim_key(endpoint, Identity(source, id_)) for endpoint, source, id_ in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assert {len(key) for key in keys} == {16}


def test_parts_that_join_to_the_same_text_have_different_keys() -> None:
    """The boundary between source and id matters."""
    assert claim_key("e", Identity("ab", "c")) != claim_key("e", Identity("a", "bc"))


def test_outgoing_ids_depend_on_the_index_and_do_not_grow() -> None:
    """Each message sent while handling another has an id of its own, always as long."""
    incoming = Identity("shop", "x" * 5000)
    ids = [outgoing_id("billing", incoming, index) for index in range(100)]
    assert len(set(ids)) == 100
    assert {len(id_) for id_ in ids} == {37}
    assert ids[7] == outgoing_id("billing", incoming, 7)


@given(st.integers(0, (1 << 48) - 1), st.text())
def test_an_instant_is_read_back_from_the_id(instant: int, source: str) -> None:
    """By who knows the source and the id, and nothing else."""
    id_ = outgoing_id(source, Identity("till", "m1"), 0, instant)
    assert instant_in(Identity(source, id_)) == instant
    assert without_instant(id_) == without_instant(outgoing_id(source, Identity("till", "m1"), 0))


OURS = outgoing_id("shop", Identity("till", "m1"), 0, 1_700_000_000_000)


def test_ids_are_stored_and_never_change_their_form() -> None:
    """Claims depend on them."""
    assert OURS == "018bcfe56800-a7d4e72c325a0a8cce195335"


@pytest.mark.parametrize(
    ("source", "id_"),
    [
        ("shop", ""),
        ("shop", "m1"),
        ("shop", "a" * 37),
        ("shop", OURS.upper()),
        ("shop", OURS[:-1]),
        ("shop", OURS + "0"),
        ("shop", OURS + "\n"),
        ("shop", "0" + OURS[1:].replace("1", "2")),
        ("shop", OURS.replace("-", "_")),
        ("billing", OURS),
        ("", OURS),
        ("shop", "0e9ec8a0-a6e2-4bb0-8c7d-2a00000a0e9e"),
        ("shop", "0e9ec8a0a6e2bb0c7d2a00000a0e9ec8"),
        ("shop", "123456789012-123456789012345678901234"),
    ],
)
def test_the_id_of_another_sender_contains_no_instant(source: str, id_: str) -> None:
    """Not by accident, and not where it takes over the id of a message that it was sent."""
    assert instant_in(Identity(source, id_)) is None


def test_fingerprints_tell_bodies_apart_in_eight_bytes() -> None:
    """The same id with another body can be noticed."""
    assert fingerprint(b"a") != fingerprint(b"b")
    assert len(fingerprint(b"")) == 8


def letter(**changes: object) -> DeadLetter:
    """Write a dead letter."""
    message = Message(id="1", source="s", type="T", body=b"x")
    fields = {"endpoint": "e", "reason": "r", "headers": (("a", "b"),), "body": b"x", "message": message} | changes
    return DeadLetter(**fields)


def test_a_dead_letters_key_names_the_message_and_its_body() -> None:
    """Copies share a key whatever their headers; another body, endpoint or missing identity does not."""
    other_body = Message(id="1", source="s", type="T", body=b"y")
    assert letter().key == letter(headers=(("other", "header"),), reason="else").key
    assert len({letter().key, letter(endpoint="f").key, letter(message=other_body).key, letter(message=None).key}) == 4


def test_a_letter_without_identity_is_named_by_its_whole_delivery() -> None:
    """Headers and body make the difference."""
    nameless = [letter(message=None), letter(message=None, body=b"y"), letter(message=None, headers=(("ab", ""),))]
    assert len({each.key for each in nameless}) == 3
