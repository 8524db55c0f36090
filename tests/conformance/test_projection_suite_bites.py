"""Every rule about projections fails on a broken one; every broken projection is caught."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onceonly_conformance.projection_suite import ProjectionSuite
from onceonly_conformance.suite import broken, rules
from tests.broken_adapters import projections

BROKEN = {
    projections.PrefixProjection: ["what_was_never_put_is_not_there"],
    projections.TextProjection: ["what_was_put_is_there"],
    projections.EmptyIsNothingProjection: ["a_body_may_be_empty"],
    projections.CaselessProjection: ["keys_are_exact"],
    projections.FirstProjection: ["a_greater_version_replaces_the_body"],
    projections.SmallNumberProjection: ["a_greater_version_replaces_the_body"],
    projections.LastProjection: ["a_smaller_version_changes_nothing", "any_order_of_writes_ends_the_same"],
    projections.SortingProjection: ["a_smaller_version_changes_nothing"],
    projections.AgainProjection: ["the_same_version_changes_nothing"],
    projections.StrictProjection: ["a_smaller_version_changes_nothing", "the_same_version_changes_nothing"],
    projections.FromOneProjection: ["version_zero_is_put_once"],
    projections.KeepingProjection: ["what_was_deleted_is_gone"],
    projections.SweepingProjection: ["what_was_deleted_is_gone"],
    projections.ForgettingProjection: ["an_older_put_does_not_bring_a_deleted_key_back"],
    projections.KnownOnlyProjection: ["a_key_may_be_deleted_before_it_is_put"],
    projections.BuryingProjection: ["a_newer_put_brings_a_deleted_key_back"],
    projections.SecondLookProjection: ["a_newer_put_brings_a_deleted_key_back"],
    projections.TwoStepProjection: ["many_may_write_a_key_at_once"],
    projections.GrowingProjection: ["a_cancelled_put_may_be_put_again"],
}
BITES = [
    pytest.param(adapter, f"test_{rule}", id=f"{adapter.__name__}-{rule}") for adapter in BROKEN for rule in BROKEN[adapter]
]


class InMemory(ProjectionSuite):
    """A suite on a projection in memory."""

    def __init__(self, kind: type[projections.WholeProjection]) -> None:
        self._kind = kind

    @asynccontextmanager
    async def open_projection(self) -> AsyncIterator[Any]:
        """Open an empty one."""
        yield self._kind()


@pytest.mark.parametrize(("adapter", "rule"), BITES)
async def test_a_broken_projection_is_caught(adapter: type[projections.WholeProjection], rule: str) -> None:
    """By the rule about the promise that it breaks."""
    assert await broken(InMemory(adapter), rule)


@pytest.mark.parametrize("rule", rules(ProjectionSuite))
async def test_a_projection_that_keeps_its_promises_is_not_caught(rule: str) -> None:
    """So what the others break is what they change."""
    assert not await broken(InMemory(projections.WholeProjection), rule)


def test_every_rule_bites_and_every_broken_projection_is_used() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for names in BROKEN.values() for rule in names} == set(rules(ProjectionSuite))
    kinds = {each for each in vars(projections).values() if isinstance(each, type) and each is not projections.WholeProjection}
    assert {each for each in kinds if issubclass(each, projections.WholeProjection)} == set(BROKEN)
