"""`docs/reference/metrics.md` has a row for each metric and each alert, as they are in the code."""

import re

from onceonly.cli.monitoring import shipped
from onceonly.runtime.metrics.catalog import METRICS, Metric
from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def row(metric: Metric) -> str:
    """Return the row of a metric."""
    name = metric.samples[0] if len(metric.samples) == 1 else metric.prometheus
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} | {metric.source} |"


def test_the_table_is_that_of_the_code() -> None:
    """Names, labels and meanings, in the same order."""
    head = ["| metric | kind | labels | meaning | from |", "|---|---|---|---|---|"]
    assert "\n".join([*head, *map(row, METRICS)]) in PAGE


def test_each_alert_is_explained() -> None:
    """And no other."""
    rules = re.findall(r"- alert: (\w+)", shipped("alerts.yml"))
    assert re.findall(r"^\| `(Onceonly\w+)` \|", PAGE, re.MULTILINE) == rules
