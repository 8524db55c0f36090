"""Compares samples with limits: the highest value of each number, and its growth from the first to the last quarter."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from msgspec import Struct

__all__ = ["Finding", "Limit", "Quarter", "Sample", "judge"]

FEWEST = 8
"""Samples without which a growth says nothing."""


class Sample(Struct, frozen=True):
    """The numbers of one moment, by name. `at` is in seconds since the start of the host."""

    at: float
    numbers: Mapping[str, float]


class Limit(Struct, frozen=True, kw_only=True):
    """The limits of one number: its highest value, and how much its median may grow. None: any. `why` derives them."""

    name: str
    most: float | None = None
    growth: float | None = None
    why: str = ""


class Quarter(NamedTuple):
    """The lowest, median and highest value within a quarter of the samples."""

    lowest: float
    median: float
    highest: float


class Finding(Struct, frozen=True, kw_only=True):
    """One number of a run, and what is wrong with it: empty if it is within its limits."""

    limit: Limit
    count: int
    first: Quarter
    last: Quarter
    highest: float
    growth: float
    problems: tuple[str, ...] = ()


def judge(samples: Sequence[Sample], limits: Sequence[Limit], *, warm_up: float = 0.0) -> list[Finding]:
    """Compare all samples with `most`, and those after `warm_up` seconds with `growth`.

    A number that was never sampled, or too rarely after the warm-up, is a problem.
    """
    return [_judge(limit, samples, warm_up) for limit in limits]


def _judge(limit: Limit, samples: Sequence[Sample], warm_up: float) -> Finding:
    values = [sample.numbers[limit.name] for sample in samples if limit.name in sample.numbers]
    warm = [sample.numbers[limit.name] for sample in samples if sample.at >= warm_up and limit.name in sample.numbers]
    if not values:
        none = Quarter(0, 0, 0)
        problems = (f"{limit.name}: was never sampled",)
        return Finding(limit=limit, count=0, first=none, last=none, highest=0, growth=0, problems=problems)
    judged = warm or values
    size = max(1, len(judged) // 4)
    first, last = _quarter(judged[:size]), _quarter(judged[-size:])
    growth, highest = last.median - first.median, max(values)
    problems = tuple(_problems(limit, highest, growth, len(warm)))
    return Finding(limit=limit, count=len(values), first=first, last=last, highest=highest, growth=growth, problems=problems)


def _quarter(values: Sequence[float]) -> Quarter:
    return Quarter(min(values), median(values), max(values))


def _problems(limit: Limit, highest: float, growth: float, count: int) -> Iterator[str]:
    if limit.most is not None and highest > limit.most:
        yield f"{limit.name}: {highest:g} at its highest, the limit is {limit.most:g} ({limit.why})"
    if limit.growth is None:
        return
    if count < FEWEST:
        yield f"{limit.name}: {count} samples after the warm-up are too few to judge its growth"
    elif growth > limit.growth:
        yield f"{limit.name}: its median grew by {growth:g}, the limit is {limit.growth:g} ({limit.why})"
