"""The soak of hosts: what leaks exceeds its limits, and what does not leak passes."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from benchmarks.soak.limits import Finding, Limit, Sample, judge
from benchmarks.soak.plan import HostName, limits_of, plan_of
from benchmarks.soak.sampling import ProcessUse, use_of

FLAT, GROWING, HIGH = [10.0] * 40, [float(step) for step in range(40)], [10.0] * 39 + [31.0]
LIMIT = Limit(name="descriptors", most=30, growth=5)
PROGRAM = """
import socket, sys, threading
leaked = []
for line in sys.stdin:
    if "descriptors" in sys.argv:
        leaked.append(socket.socket())
    if "memory" in sys.argv:
        leaked.append(bytes([1]) * 2**20)
    if "threads" in sys.argv:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("done", flush=True)
"""
ROUNDS = 32
"""Requests that a process has served, each of which leaks one thing."""


def samples(values: Sequence[float], name: str = "descriptors") -> list[Sample]:
    """Return a sample each 5 seconds."""
    return [Sample(5.0 * number, {name: value}) for number, value in enumerate(values)]


def problems(values: Sequence[float], limit: Limit = LIMIT, warm_up: float = 0.0) -> tuple[str, ...]:
    """Return what is wrong with these values."""
    (finding,) = judge(samples(values), [limit], warm_up=warm_up)
    return finding.problems


def test_a_number_within_its_limits_passes() -> None:
    """Flat, or up and down."""
    assert not problems(FLAT)
    assert not problems([10.0, 20.0] * 20)


def test_a_number_that_grows_slowly_is_found() -> None:
    """Its highest value is within the limit by far."""
    (found,) = problems([10 + value / 5 for value in GROWING])
    assert "grew by" in found


def test_one_moment_above_the_limit_is_found() -> None:
    """Its median does not grow."""
    (found,) = problems(HIGH)
    assert "31 at its highest, the limit is 30" in found


def test_what_fills_while_it_warms_up_is_not_a_growth() -> None:
    """A pool fills, and claims come until the first of them expire."""
    filling = [*range(20), *[20.0] * 40]
    assert problems(filling)
    assert not problems(filling, warm_up=100.0)


def test_the_highest_value_counts_while_it_warms_up() -> None:
    """A pool that is too large at the start is too large."""
    assert problems([31.0, *FLAT], warm_up=100.0)


@pytest.mark.parametrize("values", [[], FLAT[:7]])
def test_too_few_samples_pass_nothing(values: Sequence[float]) -> None:
    """What was not measured is not within its limits."""
    assert problems(values)


@pytest.mark.parametrize("host", ["forked", "threaded"])
def test_each_limit_of_a_host_can_be_exceeded(host: HostName) -> None:
    """Each finds a leak by its growth or by its highest value, and has a reason."""
    for limit in limits_of(plan_of(host, 60)):
        assert limit.most is not None
        assert limit.why
        (finding,) = judge(samples([limit.most * step / 39 + 1 for step in range(40)], limit.name), [limit])
        assert finding.problems, limit


def test_a_short_run_has_no_limits_of_growth() -> None:
    """Its quarters are too short, so it has the highest values only."""
    assert all(limit.growth is None and limit.most is not None for limit in limits_of(plan_of("forked", 2)))


@contextmanager
def process(leak: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that serves a request for each line."""
    words = [sys.executable, "-c", PROGRAM, leak]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()


def soak(leak: str) -> dict[str, Finding]:
    """Sample a process after each request that it has served."""
    taken: list[ProcessUse] = []
    with process(leak) as served:
        assert served.stdin is not None
        assert served.stdout is not None
        for _ in range(ROUNDS):
            served.stdin.write("request\n")
            served.stdin.flush()
            assert served.stdout.readline() == "done\n"
            use = use_of(served.pid)
            assert use is not None
            taken.append(use)
    found = [
        Sample(5.0 * number, {"descriptors": use.descriptors, "memory": use.resident, "threads": use.threads})
        for number, use in enumerate(taken)
    ]
    limits = [replace(LIMIT, name=name, most=None, growth=ROUNDS / 4) for name in ("descriptors", "memory", "threads")]
    return {finding.limit.name: finding for finding in judge(found, limits)}


@pytest.mark.parametrize("leak", ["descriptors", "memory", "threads", ""])
def test_a_process_that_leaks_is_found(leak: str) -> None:
    """It leaks a descriptor, a MiB or a thread with each request, and fails by that number only."""
    found = [name for name, finding in soak(leak).items() if finding.problems]
    assert found == ([leak] if leak else [])


def test_a_process_that_has_ended_holds_nothing() -> None:
    """Whether it is waited for or not."""
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        assert ended.stdout is not None
        ended.stdout.read()
        ended.wait()
    assert use_of(ended.pid) is None
