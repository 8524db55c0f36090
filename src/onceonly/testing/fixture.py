"""The pytest plugin: the fixtures `onceonly_run` and `onceonly_crash_point`. Imports nothing heavy until a test uses one.

    async def test_an_order_survives_every_crash(onceonly_run, onceonly_crash_point):
        async with onceonly_run(shop) as t:
            await t.deliver(PlaceOrder("1", 2), copies=2, crash_at=onceonly_crash_point)
            assert t.sent == [OrderPlaced("1")]

Such a test runs once for each crash point. It is skipped at those that its messages do not reach: a handler that succeeds does
not reach a retry, for example.
"""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

CRASH_POINT = "onceonly_crash_point"


@pytest.fixture
def onceonly_run(tmp_path: Path) -> Any:
    """`onceonly.testing.run`, with its database in this test's own temporary directory."""
    return partial(import_module("onceonly.testing.runs").run, directory=tmp_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `onceonly_crash_point` once for each crash point."""
    if CRASH_POINT in metafunc.fixturenames:
        points = import_module("onceonly.runtime.observe.crash").CRASH_POINTS
        every = import_module("onceonly.runtime.observe.crash").EveryCrashPoint
        metafunc.parametrize(CRASH_POINT, [every(point) for point in points])
