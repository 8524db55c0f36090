"""What commands print of a URL that was mistyped, or given where none belongs: nothing of its password."""

import pytest

from tests.cli.terminal import Terminal
from tests.config.test_url_passwords import FIRST, RAW, SECOND, URLS, assert_hidden


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "orders.jsonl", "{}"],
        ["dead", "list", "{}", "--limit", "{}"],
        ["--{}"],
        ["status", "--{}"],
        ["run", "{}"],
        ["run", "shop:shop", "--health", "{}"],
        ["run", "shop:shop", "--store", "{}"],
        ["send", "--event", "--type", "a", "--id-from", "a", "--transport", "{}"],
        ["dead", "list", "{}"],
        ["schema", "check", "{}"],
        ["dashboard", "shop:shop", "--worker", "{}"],
    ],
)
def test_no_command_prints_it(onceonly: Terminal, arguments: list[str]) -> None:
    """Also where no URL is expected, and an error quotes what was given."""
    (onceonly.folder / "orders.jsonl").write_text('{"a": 1}\n')
    for raw in ("/", "?", "@", "'", " "):
        done = onceonly(*(each.format(f"redis://me:{FIRST}{raw}{SECOND}@127.0.0.1:1/0") for each in arguments))
        assert done.code == 2 or (raw == "'" and done.code == 1)  # or a server that is away
        assert_hidden(done.out + done.err)


@pytest.mark.parametrize("system", URLS)
@pytest.mark.slow
def test_the_environment_is_not_printed_either(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """The same for the URLs that variables set."""
    for raw in RAW:
        url = URLS[system].format(f"{FIRST}{raw}{raw}{SECOND}")
        for name in ("ONCEONLY_STORE", "ONCEONLY_TRANSPORT"):
            monkeypatch.setenv(name, url)
            done = onceonly("status", "shop:shop")
            monkeypatch.delenv(name)
            assert done.code == 2
            assert_hidden(done.out + done.err)
