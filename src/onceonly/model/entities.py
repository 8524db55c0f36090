"""Entities: the documents that a unit loaded for its messages, and what its handlers made of them."""

from collections.abc import Mapping

Changes = Mapping[str, bytes | None]
"""What becomes of entities, by key: the new state, or None to delete it."""


class Entities:
    """The entities of one unit, by key, as a store loaded them; what is written here is committed with the unit or never was.

    A state is bytes, as the endpoint serialized it; nothing here awaits anything.
    """

    def __init__(self, loaded: Mapping[str, bytes | None]) -> None:
        """Begin with what was loaded; None for an entity that does not exist."""
        self._loaded = dict(loaded)
        self._changed: dict[str, bytes | None] = {}

    def add(self, key: str, state: bytes | None) -> None:
        """Take in one more that was loaded; one that is there already stays as it is."""
        self._loaded.setdefault(key, state)

    def read(self, key: str) -> bytes | None:
        """Return the state as earlier handlers of this unit left it, or None. Raises LookupError for what was not loaded."""
        if key in self._changed:
            return self._changed[key]
        if key not in self._loaded:
            raise LookupError(f"entity {key!r} is not part of this unit")
        return self._loaded[key]

    def write(self, key: str, state: bytes | None) -> None:
        """Change a state, or delete it with None; writing what is there already changes nothing."""
        if self.read(key) != state:
            self._changed[key] = state

    def changes(self) -> Changes:
        return dict(self._changed)

    def mark(self) -> Changes:
        return dict(self._changed)

    def undo(self, mark: Changes) -> None:
        self._changed = dict(mark)


class Deleted:
    """What a handler returns to delete its entity."""
