"""The demo of the shop: a short run keeps the promise, and the audit would see it broken."""

import json
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from examples.shop_demo.__main__ import MUST_BE_ZERO
from examples.shop_demo.audit import Books, Findings, audit
from examples.shop_demo.clients import Wish
from tests import ROOT

KILLS = 4


@pytest.mark.slow
def test_a_short_run_through_kills_keeps_every_order_once() -> None:
    """The program as `make demo-shop` starts it, on SQLite."""
    command = [sys.executable, "-m", "examples.shop_demo", "--no-broker", "--kills", str(KILLS), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["kills_web"] + numbers["kills_worker"] == KILLS
    assert numbers["wishes"] == numbers["orders"] > 0
    assert [numbers[name] for name in MUST_BE_ZERO] == [0] * len(MUST_BE_ZERO)


GOOD = Books(frozenset({1, 2}), Counter({1: 1, 2: 1}), Counter({1: 1, 2: 1}))


def wish(*ids: int) -> Wish:
    """Make a wish that was answered with these orders."""
    return Wish("k", {}, [json.dumps({"id": id_}).encode() for id_ in ids])


def test_what_must_be_zero_is_what_the_audit_counts() -> None:
    """All of it, and all is well here."""
    found = msgspec.structs.asdict(audit([wish(1, 1), wish(2)], GOOD))
    assert found == dict.fromkeys(MUST_BE_ZERO, 0)


@pytest.mark.parametrize(
    ("wishes", "books", "wrong"),
    [
        ([wish(1), wish(3)], GOOD, {"lost": 1}),
        ([wish(1)], GOOD, {"duplicated": 1}),
        ([wish(1, 2), wish(2)], GOOD, {"different_answers": 1}),
        ([wish(1), wish(2)], Books(GOOD.orders, Counter({1: 1}), GOOD.parcels), {"unbilled": 1}),
        ([wish(1), wish(2)], Books(GOOD.orders, Counter({1: 1, 2: 2}), GOOD.parcels), {"billed_twice": 1}),
        ([wish(1), wish(2)], Books(GOOD.orders, GOOD.invoices, Counter({2: 1})), {"unshipped": 1}),
        ([wish(1), wish(2)], Books(GOOD.orders, GOOD.invoices, Counter({1: 3, 2: 1})), {"shipped_twice": 1}),
        ([wish(1), wish(2)], Books(GOOD.orders, Counter({1: 1, 2: 1, 9: 1}), GOOD.parcels), {"ghosts": 1}),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_the_audit_sees_what_is_wrong(wishes: list[Wish], books: Books, wrong: dict[str, int]) -> None:
    """One thing at a time."""
    found: Findings = audit(wishes, books)
    assert {name: number for name, number in msgspec.structs.asdict(found).items() if number} == wrong
