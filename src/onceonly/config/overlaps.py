"""Places of one endpoint that must not share keys: what one of them stores would be read or deleted by another."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from onceonly.config.location import Location
from onceonly.systems import KeySpace

LISTED: Mapping[str, str] = {"store": "register/", "deduplication": "done/", "tokens": "token/", "projections": "tombstone/"}
"""The keys that are listed in a place for documents, by its role. What is listed is read, and deleted when it is old."""


class UsedPlace(NamedTuple):
    """A place, and the setting that names it."""

    role: str
    location: Location

    def __str__(self) -> str:
        return f"{self.role} {self.location}"


def overlap_problems(documents: list[UsedPlace], others: list[UsedPlace]) -> Iterator[str]:
    """Tell which places share keys, and must not.

    `documents` may be in one place: their keys begin with different words. They may not be inside each other where one is
    listed. `others`, such as blobs, have keys that handlers choose, so they share them with nothing.
    """
    for index, other in enumerate(others):
        for used in (*documents, *others[:index]):
            if _share_keys(used.location, other.location):
                yield (
                    f"{other} and {used} share keys: they have the same place, or one is inside the other, so one would "
                    f"be taken for the other. Give {other.role} a place of its own, such as another bucket or prefix"
                )
    for outer in documents:
        for inner in documents:
            if _is_listed(outer, inner):
                yield (
                    f"{inner} is where {outer} keeps its {LISTED[outer.role]} documents: use the same place for both, or "
                    "another prefix"
                )


def _share_keys(one: Location, other: Location) -> bool:
    first, second = _keys(one), _keys(other)
    return first is not None and second is not None and one.system is other.system and first.overlaps(second)


def _is_listed(outer: UsedPlace, inner: UsedPlace) -> bool:
    around, within = _keys(outer.location), _keys(inner.location)
    if around is None or within is None or outer.location.system is not inner.location.system or around == within:
        return False
    listed = around._replace(prefix=around.prefix + LISTED.get(outer.role, "\n"))
    return listed.container == within.container and within.prefix.startswith(listed.prefix)


def _keys(place: Location) -> KeySpace | None:
    known = place.system.keys
    return None if known is None or not isinstance(place.setting, str) else known(place.setting)
