"""The contract of stores that load entities for messages, rule by rule. Every check runs in another process than the write."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from onceonly.model.entities import Entities
from onceonly.model.errors import CommitRefused, ConflictError, PermanentFailure
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Unit
from onceonly_conformance.samples import message
from onceonly_conformance.store_subject import StoreSubject
from onceonly_conformance.suite import Suite, raises, steps

WORKERS = 6
LARGE_BYTES, LARGE = 256 * 1024, 20
"""The size of a large state, and how many of them one rule changes: more than one request of a system takes."""

States = Mapping[str, bytes | None]


class EntityStoreSuite(Suite):
    """The rules of a store for the entities of its messages. Override `open_store`.

    States are JSON. Messages that the store puts into one unit by `unit_key` are handled in one unit.
    """

    def open_store(self) -> AbstractAsyncContextManager[StoreSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_the_next_unit_loads_what_was_committed(self) -> None:
        """A unit loads the entity of its message as the unit before it left it: created, changed, or deleted."""
        async with self.open_store() as subject:
            seen = [
                await changed(subject, f"m{number}", {"A": state}) for number, state in enumerate((b"1", b"[2]", None, b"3"))
            ]
            assert seen == [{"A": None}, {"A": b"1"}, {"A": b"[2]"}, {"A": None}]

    async def test_entities_of_one_unit_are_separate(self) -> None:
        """Messages of several entities can create, change, delete and leave them. Each has its own state."""
        first = {"A": b"1", "B": b"2", "C": b"3", "D": b"4", "E": b"5", "F": b"6"}
        second = {"G": b"7", "A": b"[1]", "C": None, "E": b"5", "B": b"[2]", "H": b"8", "D": None, "F": b"6"}
        async with self.open_store() as subject:
            assert await changed(subject, "first", first) == dict.fromkeys(first)
            assert await changed(subject, "second", second) == {**dict.fromkeys(second), **first}
            assert await changed(subject, "third", dict(second)) == second

    async def test_an_entity_of_several_messages_has_one_state(self) -> None:
        """Messages of one entity see the changes of those before them in the unit."""
        asked = [replace(message(f"m{number}"), unit="A") for number in range(4)]
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin(asked)
            for each in asked:
                entities_of(unit).write("A", (entities_of(unit).read("A") or b"1") + each.id[1:].encode())
            await unit.commit([Record(each.identity, unit=unit.key) for each in asked])
            assert await changed(subject, "last", {"A": None}) == {"A": b"10123"}

    async def test_an_abandoned_unit_changes_no_entity(self) -> None:
        """An abandoned unit leaves the entity as it was, also one that it created."""
        async with self.open_store() as subject:
            await changed(subject, "first", {"A": b"1"})
            for name in ("A", "B"):
                unit = await (await subject.store()).begin([replace(message(f"of {name}"), unit=name)])
                entities_of(unit).write(name, b"0")
                unit.abandon()
            assert await changed(subject, "last", {"A": b"1", "B": None}) == {"A": b"1", "B": None}

    async def test_a_unit_loads_no_other_entity(self) -> None:
        """An entity that no message of the unit names is not part of it."""
        async with self.open_store() as subject:
            await changed(subject, "first", {"A": b"1", "B": b"2"})
            unit = await (await subject.store()).begin([replace(message(), unit="A")])
            try:
                assert entities_of(unit).read("A") == b"1"
                async with raises(LookupError):
                    entities_of(unit).read("B")
            finally:
                unit.abandon()

    async def test_very_many_entities_change_at_once(self) -> None:
        """More entities than one request of the system names are created and deleted."""
        keys = [f"{number:05}" for number in range(self.many)]
        async with self.open_store() as subject:
            created: States = {key: b"[%d]" % int(key) for key in keys}
            deleted: States = dict.fromkeys(keys)
            assert await changed(subject, "m1", created) == deleted
            assert await changed(subject, "m2", deleted) == created
            assert await changed(subject, "m3", deleted) == deleted

    async def test_large_entities_change_at_once(self) -> None:
        """The states of one unit may be larger together than one request of the system."""
        keys = [f"{number:02}" for number in range(LARGE)]
        async with self.open_store() as subject:
            states = [dict.fromkeys(keys, b'"%s"' % (mark * LARGE_BYTES)) for mark in (b"a", b"b")]
            assert await changed(subject, "m1", states[0]) == dict.fromkeys(keys)
            assert await changed(subject, "m2", states[1]) == states[0]
            assert await changed(subject, "m3", states[1]) == states[1]

    async def test_of_units_that_change_an_entity_none_overwrites_another(self) -> None:
        """Concurrent units with one entity wait for each other, or raise ConflictError: at its creation and later."""
        async with self.open_store() as subject:
            async with asyncio.timeout(self.patience), asyncio.TaskGroup() as workers:
                for number in range(WORKERS):
                    workers.create_task(_append(subject, f"m{number}"))
            assert await changed(subject, "last", {"A": None}) == {"A": b"1" * WORKERS}

    async def test_an_entity_with_a_key_too_long_is_refused(self) -> None:
        """A key that the system cannot store makes `begin` or the commit fail for good. Nothing is written."""
        async with self.open_store() as subject:
            async with raises(PermanentFailure, CommitRefused):
                await changed(subject, "m1", {"A" * 5000: b"1"})
            async with raises(PermanentFailure, CommitRefused):
                await changed(subject, "m3", {"B": b"1", "C" * 5000: b"1"})
            assert await changed(subject, "m2", {"A": b"1"}) == {"A": None}


def entities_of(unit: Unit) -> Entities:
    entities = unit.resources.get(Entities)
    assert isinstance(entities, Entities)
    return entities


async def changed(subject: StoreSubject, mark: str, states: States) -> States:
    """Handle one message for each entity as a separate process, in as few units as possible. Return the earlier states."""
    store = await subject.store()
    units: dict[str, list[Message]] = {}
    for key in states:
        asked = replace(message(f"{mark}/{key}"[:200]), unit=key)
        units.setdefault(store.unit_key(asked), []).append(asked)
    before: dict[str, bytes | None] = {}
    for together in units.values():
        before |= await _changed_by(await store.begin(together), states, together)
    return before


async def _changed_by(unit: Unit, states: States, asked: Sequence[Message]) -> States:
    assert unit.found.new == tuple(asked)
    entities = entities_of(unit)
    before = {each.unit: entities.read(each.unit) for each in asked}
    for each in asked:
        entities.write(each.unit, states[each.unit])
    await unit.commit([Record(each.identity, unit=unit.key) for each in asked])
    return before


async def _append(subject: StoreSubject, name: str) -> None:
    """Append a digit to an entity, as a worker does: start again after each ConflictError."""
    asked = replace(message(name), unit="A")
    while True:
        try:
            unit = await (await subject.store()).begin([asked])
            await _append_once(unit, asked)
        except ConflictError:
            await steps(1)
        else:
            return


async def _append_once(unit: Unit, asked: Message) -> None:
    state = entities_of(unit).read("A")
    await steps(3)
    entities_of(unit).write("A", (state or b"") + b"1")
    await unit.commit([Record(asked.identity, unit=unit.key)])
