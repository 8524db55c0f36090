"""Broken places for dead letters."""

from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly_conformance.dead_letter_suite import ALL, DeadLettersSubject

EVERYTHING = 1000


class WrappedLetters:
    """A subject, and the one place it has, that pass everything on. What breaks a promise overrides a method."""

    def __init__(self, inner: DeadLettersSubject) -> None:
        self.subject = inner
        self.inner: DeadLetters

    async def dead_letters(self) -> DeadLetters:
        """Open the place."""
        self.inner = await self.subject.dead_letters()
        return self

    def now(self) -> int:
        """Return the time."""
        return self.subject.now()

    async def add(self, letter: DeadLetter) -> None:
        """Store a letter."""
        await self.inner.add(letter)

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters."""
        return await self.inner.page(chosen, after=after, limit=limit)

    async def get(self, key: str) -> DeadLetter | None:
        """Return one letter."""
        return await self.inner.get(key)

    async def count(self, chosen: Filter) -> int:
        """Count letters."""
        return await self.inner.count(chosen)

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove letters."""
        return await self.inner.remove(keys)


class ChoosingLetters(WrappedLetters):
    """Looks for something else than it was asked to."""

    def choose(self, chosen: Filter) -> Filter:
        """Return what is looked for."""
        return chosen

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List others."""
        return await self.inner.page(self.choose(chosen), after=after, limit=limit)

    async def count(self, chosen: Filter) -> int:
        """Count others."""
        return await self.inner.count(self.choose(chosen))


class EndpointIgnoringLetters(ChoosingLetters):
    """Lists the letters of all endpoints."""

    def choose(self, chosen: Filter) -> Filter:
        """Ignore the endpoint."""
        return replace(chosen, endpoint="")


class TypeIgnoringLetters(ChoosingLetters):
    """Lists letters of all types."""

    def choose(self, chosen: Filter) -> Filter:
        """Ignore the type."""
        return replace(chosen, type="")


class GroupIgnoringLetters(ChoosingLetters):
    """Lists letters of all failure groups."""

    def choose(self, chosen: Filter) -> Filter:
        """Ignore the group."""
        return replace(chosen, failure="")


class ReasonIgnoringLetters(ChoosingLetters):
    """Lists letters with any reason."""

    def choose(self, chosen: Filter) -> Filter:
        """Ignore the reason."""
        return replace(chosen, reason="")


class WildcardLetters(ChoosingLetters):
    """Gives a percent sign a meaning, as LIKE does."""

    def choose(self, chosen: Filter) -> Filter:
        """Match anything."""
        return replace(chosen, reason=chosen.reason.replace("%", ""))


class FirstChoiceLetters(ChoosingLetters):
    """Looks at the first criterion only."""

    def choose(self, chosen: Filter) -> Filter:
        """Ignore the others."""
        return Filter(endpoint=chosen.endpoint) if chosen.endpoint else chosen


class RoughCountLetters(WrappedLetters):
    """Counts all letters, whichever were chosen."""

    async def count(self, chosen: Filter) -> int:
        """Count all."""
        return await self.inner.count(ALL)


class HistoryLosingLetters(WrappedLetters):
    """Keeps the last failure only."""

    async def add(self, letter: DeadLetter) -> None:
        """Drop the history."""
        await self.inner.add(replace(letter, history=letter.history[-1:]))


class UndatedLetters(WrappedLetters):
    """Does not say when."""

    async def get(self, key: str) -> DeadLetter | None:
        """Drop the time."""
        letter = await self.inner.get(key)
        return letter and replace(letter, at=0)


class MessagesOnlyLetters(WrappedLetters):
    """Has no place for what could not be read."""

    async def add(self, letter: DeadLetter) -> None:
        """Drop it."""
        if letter.message is not None:
            await self.inner.add(letter)


class RerunningLetters(WrappedLetters):
    """Would run the handler again for what only has to be finished."""

    async def add(self, letter: DeadLetter) -> None:
        """Drop the mark."""
        await self.inner.add(replace(letter, finish_only=False))


class DuplicatingLetters(WrappedLetters):
    """Stores a copy as a second letter."""

    def __init__(self, inner: DeadLettersSubject) -> None:
        super().__init__(inner)
        self._copies: list[DeadLetter] = []

    async def add(self, letter: DeadLetter) -> None:
        """Store every copy."""
        if await self.inner.get(letter.key):
            self._copies.append(letter)
        await self.inner.add(letter)

    async def count(self, chosen: Filter) -> int:
        """Count every copy."""
        return await self.inner.count(chosen) + len(self._copies)


class LastReasonLetters(WrappedLetters):
    """Replaces what is there."""

    async def add(self, letter: DeadLetter) -> None:
        """Store anew."""
        await self.inner.remove([letter.key])
        await self.inner.add(letter)


class BodyBlindLetters(WrappedLetters):
    """Keeps one letter for each identity."""

    async def add(self, letter: DeadLetter) -> None:
        """Look whether it is known."""
        known = await self.inner.page(Filter(endpoint=letter.endpoint), limit=EVERYTHING)
        identities = {each.message.identity for each in known if each.message}
        if letter.message is None or letter.message.identity not in identities:
            await self.inner.add(letter)


class EndpointBlindLetters(WrappedLetters):
    """Keeps one letter for each message, whoever gave it up."""

    async def add(self, letter: DeadLetter) -> None:
        """Look whether it is known."""
        known = {each.message for each in await self.inner.page(ALL, limit=EVERYTHING) if each.message}
        if letter.message not in known:
            await self.inner.add(letter)


class HeaderBlindLetters(WrappedLetters):
    """Tells what could not be read apart by its body only."""

    async def add(self, letter: DeadLetter) -> None:
        """Look whether it is known."""
        known = {each.body for each in await self.inner.page(ALL, limit=EVERYTHING) if each.message is None}
        if letter.message or letter.body not in known:
            await self.inner.add(letter)


class ReversedLetters(WrappedLetters):
    """Lists the latest first."""

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """Reverse."""
        return (await self.inner.page(chosen, after=after, limit=limit))[::-1]


class KeyOrderLetters(WrappedLetters):
    """Lists by key."""

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """Sort."""
        letters = sorted(await self.inner.page(chosen, limit=EVERYTHING), key=lambda letter: letter.key)
        return tuple(letter for letter in letters if letter.key > after)[:limit]


class UnlimitedLetters(WrappedLetters):
    """Lists all there are."""

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """Ignore the limit."""
        return await self.inner.page(chosen, after=after, limit=EVERYTHING)


class FirstPageLetters(WrappedLetters):
    """Begins at the beginning every time."""

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """Ignore the place."""
        return await self.inner.page(chosen, limit=limit)


class ChosenOnceLetters(WrappedLetters):
    """Forgets the choice from the second page on."""

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """Go on with all."""
        return await self.inner.page(ALL if after else chosen, after=after, limit=limit)


class StrictLetters(WrappedLetters):
    """Complains about an unknown key."""

    async def get(self, key: str) -> DeadLetter | None:
        """Look it up."""
        letter = await self.inner.get(key)
        if letter is None:
            raise KeyError(key)
        return letter


class BoastingLetters(WrappedLetters):
    """Claims to have removed all it was asked to."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Count the keys."""
        await self.inner.remove(keys)
        return len(keys)


class HoardingLetters(WrappedLetters):
    """Removes nothing."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Count only."""
        return sum([await self.inner.get(key) is not None for key in keys])


class ResentfulLetters(WrappedLetters):
    """Never takes again what was removed."""

    def __init__(self, inner: DeadLettersSubject) -> None:
        super().__init__(inner)
        self._removed: set[str] = set()

    async def add(self, letter: DeadLetter) -> None:
        """Refuse what is known."""
        if letter.key not in self._removed:
            await self.inner.add(letter)

    async def remove(self, keys: Sequence[str]) -> int:
        """Remember."""
        self._removed.update(keys)
        return await self.inner.remove(keys)


class WipingLetters(WrappedLetters):
    """Takes an empty list for all."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove everything."""
        if keys:
            return await self.inner.remove(keys)
        return await self.inner.remove([letter.key for letter in await self.inner.page(ALL, limit=EVERYTHING)])


class FirstRequestLetters(WrappedLetters):
    """Removes as many letters as one request takes."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove some."""
        return await super().remove(sorted(set(keys))[:100])


class RestampingLetters(WrappedLetters):
    """Stamps a letter with the time of its move."""

    async def add(self, letter: DeadLetter) -> None:
        """Leave its time out."""
        await super().add(replace(letter, at=0))
