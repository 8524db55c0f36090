"""The contract of the DeadLetters port, rule by rule. Every check runs in another process than the write."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec.structs import replace

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.failure_group import failure_group
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly_conformance.samples import EVERY_BYTE, failures, message, rich_message
from onceonly_conformance.suite import ENDPOINT, OTHER, Suite

ALL = Filter()


class DeadLettersSubject(Protocol):
    """A dead-letter store under test."""

    async def dead_letters(self) -> DeadLetters:
        """Open the dead letters. Each call opens them as a separate process would."""

    def now(self) -> int:
        """Return the adapter's time, in milliseconds since 1970."""


class DeadLetterSuite(Suite):
    """The rules of a dead-letter store. Override `open_dead_letters`."""

    def open_dead_letters(self) -> AbstractAsyncContextManager[DeadLettersSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_a_letter_comes_back_with_every_field(self) -> None:
        """Message, headers, body, reason, attempts and history are stored exactly. `at` is the time of the `add`."""
        letter = _letter()
        async with self.open_dead_letters() as subject:
            await _add(subject, letter)
            assert await (await subject.dead_letters()).get(letter.key) == replace(letter, at=subject.now())

    async def test_a_letter_without_identity_comes_back_with_every_field(self) -> None:
        """An unreadable delivery has no message. Its headers and body are stored exactly."""
        letter = DeadLetter(endpoint=ENDPOINT, reason="no id", headers=(("x", "ü"), ("x", "")), body=EVERY_BYTE)
        async with self.open_dead_letters() as subject:
            await _add(subject, letter)
            assert await (await subject.dead_letters()).get(letter.key) == replace(letter, at=subject.now())

    async def test_a_finish_only_letter_says_so(self) -> None:
        """`finish_only` is stored. A retry of such a dead letter must not run the handler."""
        letter = replace(_letter(), finish_only=True)
        async with self.open_dead_letters() as subject:
            await _add(subject, letter)
            assert [each.finish_only for each in await _page(subject)] == [True]

    async def test_adding_twice_keeps_one(self) -> None:
        """A copy of a stored dead letter is not stored again."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter(), _letter())
            await _add(subject, _letter())
            assert await (await subject.dead_letters()).count(ALL) == 1
            assert len(await _page(subject)) == 1

    async def test_the_first_reason_is_kept(self) -> None:
        """A later copy does not replace the reason of the first."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter(reason="first"), _letter(reason="second"))
            assert [each.reason for each in await _page(subject)] == ["first"]

    async def test_another_body_is_another_letter(self) -> None:
        """The same identity with another body is a second dead letter, so that a person sees both."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter(body=b"1"), _letter(body=b"2"))
            assert [each.message and each.message.body for each in await _page(subject)] == [b"1", b"2"]

    async def test_letters_of_two_endpoints_are_two(self) -> None:
        """Two endpoints may each store a dead letter for the same event."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter(), replace(_letter(), endpoint=OTHER))
            assert [each.endpoint for each in await _page(subject)] == [ENDPOINT, OTHER]

    async def test_letters_without_identity_are_told_apart_by_what_came(self) -> None:
        """Dead letters without a message are distinguished by headers and body. Exact copies are stored once."""
        first = DeadLetter(endpoint=ENDPOINT, reason="no id", headers=(("x", "1"),), body=b"1")
        letters = (first, replace(first, body=b"2"), replace(first, headers=(("x", "2"),)), first)
        async with self.open_dead_letters() as subject:
            await _add(subject, *letters)
            assert [(each.headers, each.body) for each in await _page(subject)] == [(n.headers, n.body) for n in letters[:3]]

    async def test_letters_are_listed_in_the_order_they_were_added(self) -> None:
        """Pages are in the order of the adds, also within one millisecond."""
        ids = ("m5", "m1", "m4", "m2", "m3")
        async with self.open_dead_letters() as subject:
            await _add(subject, *(_letter(name) for name in ids))
            assert await _ids(subject) == list(ids)

    async def test_a_page_holds_at_most_the_limit(self) -> None:
        """A page has at most `limit` dead letters, starting with the first."""
        async with self.open_dead_letters() as subject:
            await _add(subject, *(_letter(name) for name in ("m2", "m1", "m3")))
            assert await _ids(subject, limit=2) == ["m2", "m1"]

    async def test_pages_follow_one_another(self) -> None:
        """Each page starts after the key `after`. Together the pages contain every dead letter once."""
        ids = ["m5", "m1", "m4", "m2", "m3"]
        async with self.open_dead_letters() as subject:
            await _add(subject, *(_letter(name) for name in ids))
            found: list[str] = []
            after = ""
            for _ in range(3):
                page = await (await subject.dead_letters()).page(ALL, after=after, limit=2)
                found += [each.message.id for each in page if each.message]
                after = page[-1].key
            assert found == ids

    async def test_nothing_follows_the_last_letter(self) -> None:
        """The page after the last dead letter is empty."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter("m1"), _letter("m2"))
            assert await _ids(subject, after=_letter("m2").key) == []

    async def test_letters_are_chosen_by_endpoint(self) -> None:
        """`page` and `count` match the exact endpoint."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter("m1"), replace(_letter("m2"), endpoint=OTHER), replace(_letter("m3"), endpoint="sho"))
            await _expect(subject, Filter(endpoint=ENDPOINT), "m1")

    async def test_letters_are_chosen_by_message_type(self) -> None:
        """`page` and `count` match the exact message type. A dead letter without a message has no type."""
        other = replace(_letter("m2"), message=message("m2"))
        unread = DeadLetter(endpoint=ENDPOINT, reason="no id", headers=(), body=b"")
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter("m1"), other, unread)
            await _expect(subject, Filter(type=message().type), "m2")

    async def test_letters_are_chosen_by_a_part_of_the_reason(self) -> None:
        """`page` and `count` match a substring of the reason."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter("m1", reason="ValueError: too much"), _letter("m2", reason="KeyError: 'x'"))
            await _expect(subject, Filter(reason="Error: too"), "m1")

    async def test_letters_are_chosen_by_failure_group(self) -> None:
        """`page` and `count` match the exact key of the group. Other digits match nothing."""
        first, other = _letter("m1", reason="ValueError: too much"), _letter("m2", reason="KeyError: 'x'")
        async with self.open_dead_letters() as subject:
            await _add(subject, first, other)
            await _expect(subject, Filter(failure=failure_group(other).key.hex()), "m2")
            for digits in ("0" * 32, "ab", "no digits"):
                await _expect(subject, Filter(failure=digits))

    async def test_a_part_of_the_reason_has_no_wildcards(self) -> None:
        """The substring of the reason is matched literally."""
        async with self.open_dead_letters() as subject:
            await _add(
                subject, _letter("m1", reason="100 left"), _letter("m2", reason="5% a_b left"), _letter("m3", reason="axb")
            )
            await _expect(subject, Filter(reason="%"), "m2")
            await _expect(subject, Filter(reason="a_b"), "m2")

    async def test_choices_combine(self) -> None:
        """A dead letter must match every field of the filter."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter("m1", reason="x"), replace(_letter("m2", reason="x"), endpoint=OTHER), _letter("m3"))
            await _expect(subject, Filter(endpoint=ENDPOINT, reason="x", type=rich_message().type), "m1")

    async def test_pages_of_chosen_letters_follow_one_another(self) -> None:
        """`after` works together with a filter."""
        async with self.open_dead_letters() as subject:
            await _add(subject, *(_letter(name, reason=reason) for name, reason in (("m3", "x"), ("m2", "y"), ("m1", "x"))))
            found = await (await subject.dead_letters()).page(Filter(reason="x"), after=_letter("m3").key, limit=5)
            assert [each.message and each.message.id for each in found] == ["m1"]

    async def test_an_unknown_key_gives_nothing(self) -> None:
        """`get` returns None for an unknown key."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter("m1"))
            assert await (await subject.dead_letters()).get(_letter("m2").key) is None

    async def test_removing_says_how_many_there_were(self) -> None:
        """`remove` returns the number of dead letters that it deleted. Unknown keys do not count."""
        keys = [_letter(name).key for name in ("m1", "m2", "unknown")]
        async with self.open_dead_letters() as subject:
            await _add(subject, *(_letter(name) for name in ("m1", "m2", "m3")))
            assert await (await subject.dead_letters()).remove(keys) == 2
            assert await (await subject.dead_letters()).remove(keys) == 0

    async def test_very_many_keys_are_removed_at_once(self) -> None:
        """`remove` accepts more keys than one request of the system, and repeated ones."""
        unknown = [f"{number:064}" for number in range(self.many)]
        async with self.open_dead_letters() as subject:
            await _add(subject, *(_letter(name) for name in ("m1", "m2", "m3", "m4")))
            keys = [*unknown, *(_letter(name).key for name in ("m4", "m2", "m1", "m2"))]
            assert await (await subject.dead_letters()).remove(keys) == 3
            await _expect(subject, ALL, "m3")

    async def test_a_letter_that_was_stored_elsewhere_keeps_its_time(self) -> None:
        """A dead letter that has a time already keeps it, so that it can be moved from another store."""
        letter = replace(_letter(), at=1_600_000_000_001)
        async with self.open_dead_letters() as subject:
            await _add(subject, letter)
            assert await (await subject.dead_letters()).get(letter.key) == letter

    async def test_a_removed_letter_is_gone_and_the_others_stay(self) -> None:
        """A removed dead letter is missing from `page`, `count` and `get`."""
        async with self.open_dead_letters() as subject:
            await _add(subject, *(_letter(name) for name in ("m1", "m2", "m3")))
            await (await subject.dead_letters()).remove([_letter("m2").key])
            assert await (await subject.dead_letters()).get(_letter("m2").key) is None
            await _expect(subject, ALL, "m1", "m3")

    async def test_a_removed_letter_may_be_added_again(self) -> None:
        """A removed dead letter can be stored again. The retried message may fail once more."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter(reason="first"))
            await (await subject.dead_letters()).remove([_letter().key])
            await _add(subject, _letter(reason="second"))
            assert [each.reason for each in await _page(subject)] == ["second"]

    async def test_removing_nothing_removes_nothing(self) -> None:
        """`remove` with an empty list deletes nothing."""
        async with self.open_dead_letters() as subject:
            await _add(subject, _letter())
            assert await (await subject.dead_letters()).remove([]) == 0
            await _expect(subject, ALL, "m1")


def _letter(name: str = "m1", *, reason: str = "gave up - π", body: bytes = EVERY_BYTE) -> DeadLetter:
    return DeadLetter(
        endpoint=ENDPOINT,
        reason=reason,
        headers=(("ce-id", name), ("x-ü", "§"), ("x-ü", "")),
        body=body,
        message=rich_message(name, body),
        attempts=8,
        history=failures(),
    )


async def _add(subject: DeadLettersSubject, *letters: DeadLetter) -> None:
    place = await subject.dead_letters()
    for letter in letters:
        await place.add(letter)


async def _page(subject: DeadLettersSubject, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
    return await (await subject.dead_letters()).page(ALL, after=after, limit=limit)


async def _ids(subject: DeadLettersSubject, *, after: str = "", limit: int = 100) -> list[str]:
    return [each.message.id for each in await _page(subject, after=after, limit=limit) if each.message]


async def _expect(subject: DeadLettersSubject, chosen: Filter, *ids: str) -> None:
    """Check that `page` and `count` with this filter return exactly these dead letters."""
    place = await subject.dead_letters()
    found = [each.message.id for each in await place.page(chosen) if each.message]
    assert (found, await place.count(chosen)) == (list(ids), len(ids))
