"""Names, options of URLs, leases and messages, as several brokers write them."""

import pytest

from onceonly.model.errors import SetupError
from onceonly.model.message import Headers, Message, Send
from onceonly.queues.deliveries import HeldLeases
from onceonly.queues.messages import decode_pairs, queue_missing, write_to_fit
from onceonly.queues.names import DOTTED_PREFIX, LETTERS, EscapedNames, check_tls, read_prefix
from onceonly_conformance.clock import ManualClock

NAMES = EscapedNames(LETTERS, mark="_", hashed="_hash_")


@pytest.mark.parametrize("name", ["shop", "Größe: 10", "a_b", "_hash_", "_5f", "", "\x00", "😀"])
def test_a_name_is_read_back(name: str) -> None:
    """Whatever characters it has."""
    written = NAMES.write(name, 80)
    assert set(written) <= LETTERS | {"_"}
    assert NAMES.read(written, 80) == name


@pytest.mark.parametrize("written", ["a_zz", "_ff", "_41", "_hash_00", "ü", "a" * 81, "\ud800"])
def test_what_is_not_written_so_is_no_name(written: str) -> None:
    """Also a character that needs no escape, and a name that would be hashed."""
    assert NAMES.read(written, 80) is None


def test_a_long_name_is_hashed() -> None:
    """It has an own hash, and is not read back."""
    long = [NAMES.write("x" * 80 + end, 80) for end in "ab"]
    assert long[0] != long[1]
    assert [NAMES.read(each, 80) for each in long] == [None, None]
    assert all(each.startswith("_hash_") for each in long)


def test_a_prefix_is_read_by_its_rule() -> None:
    """The default needs not match."""
    assert read_prefix({"prefix": "team.a-"}, *DOTTED_PREFIX) == "team.a-"
    assert read_prefix({}, *DOTTED_PREFIX) == ""
    assert read_prefix({"prefix": "7"}, "[0-9]", "a digit", default="onceonly:") == "7"
    with pytest.raises(SetupError, match=r"prefix 'A': use a lower-case letter, then at most 30 of"):
        read_prefix({"prefix": "A"}, *DOTTED_PREFIX)
    with pytest.raises(SetupError, match="prefix '': use a digit"):
        read_prefix({"prefix": ""}, "[0-9]", "a digit", default="onceonly:")


def test_options_for_tls_need_it() -> None:
    """All of them are named."""
    check_tls({"lease": "5"}, "nats", "nats+tls")
    with pytest.raises(SetupError, match=r"in a nats:// URL: cafile, verify\. Remove them, or use nats\+tls://"):
        check_tls({"verify": "true", "cafile": "a.pem"}, "nats", "nats+tls")
    with pytest.raises(SetupError, match="in an amqp:// URL: capath"):
        check_tls({"capath": "certs"}, "amqp", "amqps", "capath")


def test_a_lease_ends_unless_it_is_held_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that have ended are forgotten when there are many."""
    monkeypatch.setattr("onceonly.queues.deliveries.MOST_HELD", 2)
    clock = ManualClock()
    leases = HeldLeases(clock, 1.5)
    leases.hold("abc")
    clock.advance(1499)
    leases.hold("a")
    assert [leases.holds(name) for name in "abcd"] == [True, True, True, False]
    clock.advance(1)
    assert [leases.holds(name) for name in "abc"] == [True, False, False]
    leases.hold("d")
    assert set(leases._ends) == {"a", "d"}
    leases.settle("ad")
    assert not any(map(leases.holds, "ad"))


def test_a_message_is_written_without_tracebacks_if_that_makes_it_fit() -> None:
    """A message without a history is written once."""
    calls: list[Headers] = []

    def refuse(headers: Headers, body: bytes) -> None:
        assert body == b"{}"
        calls.append(headers)

    message = Message(id="m1", source="till", type="x", body=b"{}")
    assert write_to_fit(Send(message=message, to="shop"), refuse) is None
    assert len(calls) == 1
    written = write_to_fit(Send(message=message, to="shop"), lambda headers, _: headers, prefix="p_")
    assert written is not None
    assert written[0] == ("p_specversion", "1.0")


def test_an_error_names_what_was_read() -> None:
    """The header, or the queue and its place."""
    assert decode_pairs('[["a", "b"]]', "the field `x`") == (("a", "b"),)
    with pytest.raises(ValueError, match="the field `x` is not a list of pairs of strings in JSON: "):
        decode_pairs("[1]", "the field `x`")
    assert str(queue_missing("queue 'shop'")).startswith("queue 'shop' does not exist: run `onceonly topology create")
    assert str(queue_missing("queue 'shop'", "azure-queue://a")).startswith("queue 'shop' does not exist at azure-queue://a: ")
