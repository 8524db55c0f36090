"""Programs that tests use are installed where that is possible, and missed loudly where it is not."""

import pytest

from tests.servers import debian
from tests.servers.available import MISSING
from tests.servers.debian import FAKETIME, PROGRAMS, program


@pytest.fixture(autouse=True)
def _missing_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this run's last lines not name what is only missing here, and a quick run skip nothing."""
    monkeypatch.delenv("ONCEONLY_QUICK", raising=False)
    monkeypatch.setattr(debian, "MISSING", before := set(MISSING))
    monkeypatch.setattr("tests.servers.available.MISSING", before)


@pytest.mark.parametrize(("ci", "how"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["here", "CI"])
@pytest.mark.parametrize("wanted", PROGRAMS, ids=[each.name for each in PROGRAMS])
def test_what_a_variable_names_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, wanted: debian.Server, ci: str, how: type[BaseException]
) -> None:
    """A skip that says what to do; with CI set a failure."""
    monkeypatch.setenv(wanted.variable, "no-such-program")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(how, match=f"{wanted.name} is not installed: install the package `.*`, or set {wanted.variable}"):
        program(wanted)


def test_an_installation_that_fails_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next test that wants it does not wait for it again."""
    tried: list[str] = []
    monkeypatch.setattr(debian, "_find", lambda _: None)
    monkeypatch.setattr(debian.os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian.shutil, "which", lambda _: "apt-get")
    monkeypatch.setattr(debian, "_install", lambda wanted: tried.append(wanted.default))
    monkeypatch.setenv("CI", "")
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception):
            program(FAKETIME)
    assert tried == ["faketime"]
