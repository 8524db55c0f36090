"""The guides: what their files name exists, and their numbers fit the defaults."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer import Exit

from onceonly import Retry, WorkerSettings
from onceonly.cli.app import application
from onceonly.cli.child import CLOSE_SECONDS
from onceonly.cli.commands import ListedCommand
from tests import ROOT

CONTAINERS = ROOT / "docs" / "how-to" / "containers.md"


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def entry_point() -> list[str]:
    """Return the command of the image."""
    (image,) = blocks(CONTAINERS, "dockerfile")
    command: list[str] = json.loads(re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)[0])
    return command


def manifests() -> dict[str, Any]:
    """Return the files for Kubernetes by their kind."""
    return {each["kind"]: each for each in map(yaml.safe_load, blocks(CONTAINERS, "yaml"))}


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Parse arguments of `onceonly` as the program does. Returns the values of its command."""
    group = application()
    name, command, rest = group.resolve_command(group.make_context("onceonly", ["run"], resilient_parsing=True), arguments)
    loaded = command.load() if isinstance(command, ListedCommand) else command
    if hasattr(loaded, "commands"):
        name, loaded, rest = loaded.resolve_command(loaded.make_context(name, rest, resilient_parsing=True), rest)
    try:
        values: dict[str, Any] = loaded.make_context(name, list(rest)).params
    except Exit as done:  # an option that does all there is to do, such as --print-prices
        return {"exit_code": done.exit_code, "is_done": True}
    return values


def test_the_command_of_the_image_serves_the_probes_at_their_port() -> None:
    """With the arguments of the deployment behind it."""
    container = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    program, *arguments = [*entry_point(), *container["args"]]
    values = parsed(arguments)
    (port,) = container["ports"]
    assert (program, values["endpoints"], values["processes"]) == ("onceonly", ["shop:shop"], 2)
    assert values["health"] == f"0.0.0.0:{port['containerPort']}"
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/live", "/live", "/ready"]


def test_a_container_has_more_time_to_stop_than_its_workers() -> None:
    """The grace of the workers, and the time to close."""
    seconds = manifests()["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert seconds > WorkerSettings().grace + CLOSE_SECONDS


def test_what_scales_is_a_metric() -> None:
    """With its labels."""
    (trigger,) = manifests()["ScaledObject"]["spec"]["triggers"]
    name, labels = re.findall(r"(onceonly_\w+)\{(.*)\}", trigger["metadata"]["query"])[0]
    metrics = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{name}` \|.*$", metrics, re.MULTILINE)
    assert set(re.findall(r"(\w+)=", labels)) <= set(re.findall(r"`(\w+)`", row))


@pytest.mark.parametrize("line", [line for block in blocks(CONTAINERS, "sh") for line in block.splitlines()])
def test_the_commands_of_a_release_exist(line: str) -> None:
    """They take these arguments."""
    program, *arguments = line.split()
    assert program == "onceonly"
    assert parsed(arguments)


def test_an_option_that_does_not_exist_is_found() -> None:
    """So these tests can fail."""
    with pytest.raises(Exception, match="No such option"):
        parsed(["run", "shop:shop", "--replicas", "2"])


def test_the_environment_variables_are_those_of_the_command_line() -> None:
    """The page names two."""
    named = set(re.findall(r"`(ONCEONLY_\w+)`", CONTAINERS.read_text(encoding="utf-8")))
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert named == {"ONCEONLY_STORE", "ONCEONLY_TRANSPORT"}
    assert all(f"| `{name}` |" in page for name in named)


def test_old_and_new_messages_are_read_as_the_guide_promises(tmp_path: Path) -> None:
    """Its program and its tests, as pytest runs them."""
    page = ROOT / "docs" / "how-to" / "change-messages.md"
    for text in blocks(page, "python"):
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None
        (tmp_path / name.group(1)).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_changes.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_command_that_ends_a_subscription_takes_these_arguments() -> None:
    """As the guide has it."""
    text = (ROOT / "docs" / "how-to" / "change-messages.md").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"`onceonly (topology unsubscribe [^`]*)`", text)
    values = parsed(arguments.split())
    assert "shop:shop" in str(values.values())
    assert "PlaceOrder" in str(values.values())


DEAD_LETTERS = ROOT / "docs" / "how-to" / "dead-letters.md"


def test_the_reasons_are_those_of_the_code() -> None:
    """The words before a colon, or all of them without what varies."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "onceonly").rglob("*.py"))
    page = DEAD_LETTERS.read_text(encoding="utf-8")
    for words in (
        "no identity: ",
        "endless chain: ",
        "behind the horizon: ",
        "from the future: ",
        "response lost: ",
        "too large: ",
    ):
        assert f"`{words}" in page
        assert words in code, words
    for words in ("took longer than", "the process ended while the handler of this message was running", "is not a valid"):
        assert words in page
        assert words in code, words


def test_a_message_is_given_up_after_as_many_retries_as_the_page_says() -> None:
    """The defaults."""
    assert (Retry().immediate, Retry().delayed) == (2, 5)
    assert "2 immediate and 5 delayed retries" in " ".join(DEAD_LETTERS.read_text(encoding="utf-8").split())
