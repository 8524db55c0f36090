"""The alert rules: each fires and stays silent where it should, by `promtool test rules`."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from onceonly.cli.monitoring import shipped
from onceonly.runtime.metrics.catalog import METRICS
from tests.cli.terminal import Terminal
from tests.servers.debian import promtool

CASES = Path(__file__).with_name("alerts_test.yml")
RULES = shipped("alerts.yml")
NAMES = re.findall(r"- alert: (\w+)", RULES)
LABELS = {label for metric in METRICS for label in metric.labels}
SAMPLES = {sample for metric in METRICS for sample in metric.samples}


def run_cases(folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    """Run the cases against these rules."""
    shutil.copy(CASES, folder)
    (folder / "alerts.yml").write_text(rules)
    return subprocess.run([promtool(), "test", "rules", CASES.name], cwd=folder, capture_output=True, text=True, check=False)


def test_each_rule_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    """On series of an hour."""
    done = run_cases(tmp_path, RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """An alert that no case names would be tested by nothing."""
    text = CASES.read_text()
    silent = set(re.findall(r"alertname: (\w+), exp_alerts: \[\]", text))
    fires = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", text))
    assert silent == fires == set(NAMES)
    assert len(NAMES) == 8


@pytest.mark.parametrize("alert", NAMES)
@pytest.mark.parametrize("wrong", ["vector(1) == 1", "vector(1) == 2"], ids=["always", "never"])
def test_a_rule_that_is_wrong_is_noticed(alert: str, wrong: str, tmp_path: Path) -> None:
    """Both one that always fires, and one that never does."""
    broken, number = re.subn(
        rf"(- alert: {alert}\n\s+expr:).*?(\n\s+(?:for|labels):)", rf"\1 {wrong}\2", RULES, flags=re.DOTALL
    )
    assert number == 1
    done = run_cases(tmp_path, broken)
    assert done.returncode == 1
    assert f"alertname: {alert}" in done.stdout + done.stderr


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    """Also its linter."""
    (tmp_path / "alerts.yml").write_text(RULES)
    done = subprocess.run([promtool(), "check", "rules", tmp_path / "alerts.yml"], capture_output=True, text=True, check=False)
    assert (done.returncode, f"SUCCESS: {len(NAMES)} rules found" in done.stdout) == (0, True), done.stderr


def test_rules_name_only_metrics_and_labels_that_exist() -> None:
    """A renamed metric would never alert."""
    used = set(re.findall(r"\b(?:onceonly|messaging)_\w+", RULES))
    assert used - LABELS <= SAMPLES
    assert used & SAMPLES


def test_the_command_prints_what_is_shipped(onceonly: Terminal) -> None:
    """As it is, so that it can be written to a file."""
    assert onceonly("metrics", "alerts").out == RULES
    assert onceonly("metrics", "grafana").out == shipped("grafana.json")
