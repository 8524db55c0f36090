"""A RavenDB that cannot be installed is missed loudly, and is tried once."""

from pathlib import Path

import pytest

from tests.servers import ravendb
from tests.servers.available import MISSING
from tests.servers.ravendb import RAVENDB, own_ravendb


@pytest.fixture(autouse=True)
def _missing_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let this run's last lines not name what is only missing here."""
    monkeypatch.delenv("ONCEONLY_QUICK", raising=False)
    before = set(MISSING) - {RAVENDB}
    monkeypatch.setattr(ravendb, "MISSING", before)
    monkeypatch.setattr("tests.servers.available.MISSING", before)
    monkeypatch.setattr(ravendb, "_FOLDER", tmp_path)


@pytest.mark.parametrize(("ci", "how"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["here", "CI"])
def test_a_machine_that_its_runtime_is_not_for(monkeypatch: pytest.MonkeyPatch, ci: str, how: type[BaseException]) -> None:
    """A skip that says why, and what to do; with CI set a failure."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(ravendb.platform, "machine", lambda: "aarch64")
    with pytest.raises(how, match=r"for Linux on x86-64; or set ONCEONLY_RAVENDB"), own_ravendb():
        pass


def test_an_installation_that_fails_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next test does not wait for it again."""
    tried: list[str] = []

    def install(_: Path) -> str:
        tried.append("once")
        return "no packages"

    monkeypatch.setenv("CI", "")
    monkeypatch.setattr(ravendb, "_install", install)
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception), own_ravendb():
            pass
    assert tried == ["once"]
