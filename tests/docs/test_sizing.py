"""The numbers on the page about sizing are those of the last benchmark, and its example is calculated right."""

import json
from math import ceil
from statistics import median

import pytest

from onceonly.cli import main
from tests import ROOT

PLANNED = "dynamodb://eu-central-1/orders"
PAGE = (ROOT / "docs" / "how-to" / "sizing.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "benchmarks.json").read_text(encoding="utf-8"))


def measured(row: str, name: str) -> float:
    """Return a median of the last benchmark."""
    return median(sample[name] for sample in RESULTS["rows"][row]["samples"])


@pytest.mark.parametrize(
    ("handler", "row"),
    [
        ("ORM", "onceonly_orm"),
        ("asyncpg's connection, one INSERT each", "onceonly_raw"),
        ("batch handler, one INSERT for all", "onceonly_batch"),
        ("ORM, queue in PostgreSQL", "onceonly_sql_queue"),
        ("ORM, SQLite for store and queue", "onceonly_sqlite"),
    ],
)
def test_the_rates_of_one_process_are_measured(handler: str, row: str) -> None:
    """With their CPU seconds."""
    assert f"| {handler} | {measured(row, 'rate'):,.0f} | {measured(row, 'cpu'):.3f} |" in PAGE


def test_what_a_message_costs_the_database_is_measured() -> None:
    """Next to the outbox by hand."""
    ours, theirs = (RESULTS["rows"][row]["costs"] for row in ("onceonly_orm", "outbox_orm"))
    assert f"| {ours['statements']:.2f} | {theirs['statements']:.2f} |" in PAGE
    assert f"| commits | {ours['commits']:.2f} | {theirs['commits']:.2f} |" in PAGE
    assert f"| {measured('onceonly_orm', 'wal'):,.0f} bytes | {measured('outbox_orm', 'wal'):,.0f} bytes |" in PAGE
    assert f"{measured('c_echo', 'rate'):,.0f} messages per second" in PAGE


def growth(axis: str, value: float) -> list[float]:
    """Return the rates of the ORM handler in a measurement of how cost grows."""
    (found,) = (
        each["rates"]
        for each in RESULTS["growth"]
        if (each["axis"], each["value"], each["row"]) == (axis, value, "onceonly_orm")
    )
    return sorted(found)


def test_what_makes_it_slower_is_measured() -> None:
    """A second process on the same cores, and a database that is far away."""
    one, two = growth("processes", 1), growth("processes", 2)
    words = " ".join(PAGE.split())
    assert f"{one[0]:,.0f} to {one[-1]:,.0f} messages per second, and those with two {two[0]:,.0f} to {two[-1]:,.0f}" in words
    near, far = (median(growth("added database latency, ms", added)) for added in (0, 5))
    assert f"one process reached {far / near:.2f} of its rate" in words


def test_the_example_is_calculated_right() -> None:
    """By the page's formulas."""
    rate, one, cpu = 5_000, 4_442, 0.173
    assert ceil(rate / one / 0.6) == 2
    assert f"| {rate * cpu / 1_000 / 0.6:.1f} |" in PAGE
    assert f"| {rate * 1_149 / 1_000_000:.1f} MB/s |" in PAGE
    for seconds in (604_800, 86_400):
        low, high = (rate * seconds * size * 13 / 12 / 1e9 for size in (33, 125))
        assert f"| {low:.0f} to {high:.0f} GB |" in PAGE
    assert f"= {ceil(500 / 20 / 0.6)} processes" in PAGE


def test_the_plan_on_documents_is_what_the_command_computes(capsys: pytest.CaptureFixture[str]) -> None:
    """With the built-in example prices, and the command that the page shows."""
    assert f"$ onceonly plan {PLANNED} --rate 100\n" in PAGE
    with pytest.raises(SystemExit):
        main(["plan", PLANNED, "--rate", "100"])
    printed = [
        [cell.strip().removeprefix("dynamodb: ") for cell in line.strip("│\n ").split("│")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert [row[0] for row in printed] == ["History", "DedupStore", "Tokens", "Off"]
    assert "".join(f"| {' | '.join(row)} |\n" for row in printed) in PAGE
