"""Files and terminals in other encodings than UTF-8, a wait for standard input that Ctrl-C ends, and headers as options."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from onceonly.cli.events import BadItem, read_items
from tests.cli.terminal import PROGRAM, Terminal

pytestmark = pytest.mark.slow

SEND = ("--to", "shop", "--type", "Order", "--id-from", "id", "--transport", "sqlite:///q.db")
BOM = b"\xef\xbb\xbf"


@pytest.fixture(name="shop")
def shop_that_needs_a_header(onceonly: Terminal) -> Terminal:
    """Write an endpoint whose handler needs the header `tenant`."""
    (onceonly.folder / "tenant_shop.py").write_text(
        "from onceonly import Context, Endpoint, Retry\n"
        'shop = Endpoint("shop", store="sqlite:///s.db", transport="sqlite:///q.db", retry=Retry(immediate=0, delayed=0))\n'
        '@shop.handler(type="Order")\n'
        "async def order(body: dict, context: Context) -> None:\n"
        '    if context.message.header("tenant") != "acme":\n'
        '        raise ValueError("5 \\u20ac without a tenant")\n'
        '    with open("handled", "a", encoding="utf-8") as file:\n'
        '        file.write(body["id"] + chr(10))\n',
        encoding="utf-8",
    )
    onceonly("topology", "create", "tenant_shop:shop")
    return onceonly


def handled(shop: Terminal) -> list[str]:
    """Run the endpoint until its queue is empty, and return the orders that were handled."""
    shop("run", "tenant_shop:shop", "--drain")
    file = shop.folder / "handled"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_a_byte_order_mark_is_not_part_of_the_first_line(shop: Terminal) -> None:
    """Windows' editors write one."""
    (shop.folder / "bom.jsonl").write_bytes(BOM + '{"id": "é"}\n{"id": "b"}\n'.encode())
    assert shop("send", "bom.jsonl", *SEND, "--header", "tenant=acme").code == 0
    assert handled(shop) == ["é", "b"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_utf_16_is_named(shop: Terminal, encoding: str) -> None:
    """Nothing is sent, and the error says how to convert the file."""
    (shop.folder / "wide.jsonl").write_bytes('{"id": "a"}\n'.encode(encoding))
    done = shop("send", "wide.jsonl", *SEND)
    assert done.code == 1
    assert "0 sent" in done.out
    assert "UTF-16" in done.error
    assert "iconv" in done.error


def test_lines_that_no_receiver_could_read_are_refused_one_by_one(shop: Terminal) -> None:
    """With their numbers; the others are sent, and all are counted."""
    lines = [b'{"id": "a"}', '{"id": "é"}'.encode("latin-1"), b'{"id": "c", "x": "\\ud800"}', b'{"id": "d"}']
    (shop.folder / "mixed.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    done = shop("send", "mixed.jsonl", *SEND, "--header", "tenant=acme", "--json")
    assert done.code == 1
    assert done.answer["sent"] == 2
    assert [refused["place"] for refused in done.answer["refused"]] == ["line 2", "line 3"]
    assert "not UTF-8 (byte 0xe9 at 9)" in done.answer["refused"][0]["reason"]
    assert handled(shop) == ["a", "d"]


def test_a_document_is_checked_item_by_item() -> None:
    """Also one whose first line has a mark."""
    assert [item.place for item in read_items([BOM + b'[{"id": 1},\n', b'{"id": 2}]'])] == ["item 1", "item 2"]
    with pytest.raises(BadItem, match="UTF-16"):
        list(read_items(["\ufeff{}\n".encode("utf-16-le")]))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("tenant", "write NAME=VALUE"),
        ("=x", "write NAME=VALUE"),
        ("ce-id=1", "ce-id"),
        ("tenant=a\nb", "tenant"),
        ("Tenant=b", "given twice"),
        ("a=" + "x" * 9000, "a"),
    ],
)
def test_headers_that_no_transport_carries_are_refused(shop: Terminal, given: str, problem: str) -> None:
    """Before anything is sent."""
    shop.write("one.jsonl", [{"id": "a"}])
    done = shop("send", "one.jsonl", *SEND, "--header", "tenant=acme", "--header", given)
    assert done.code == 2
    assert problem in done.error


def test_lines_have_headers_of_their_own(shop: Terminal) -> None:
    """A line with a wrong one is refused with its number, and the others are sent."""

    def event(id_: str, **headers: str) -> dict[str, object]:
        return {"specversion": "1.0", "id": id_, "type": "Order", "data": {"id": id_}, "headers": headers}

    shop.write("events.jsonl", [event("a", tenant="acme"), event("b", **{"ce-id": "1"}), event("c"), event("d", tenant="no")])
    done = shop("send", "events.jsonl", "--to", "tenant_shop:shop", "--header", "tenant=acme", "--json")
    assert (done.code, done.answer["sent"]) == (1, 3)
    assert [(each["place"], each["reason"][:28]) for each in done.answer["refused"]] == [
        ("line 2", "the header 'ce-id' is reserv")
    ]
    assert set(handled(shop)) == {"a", "c"}  # a batch in which one message fails runs again


def test_a_dead_letter_gets_the_header_that_it_lacks(shop: Terminal) -> None:
    """Without another body; a header can be removed as well, and a letter is exported to a file of its owner."""
    shop.write("one.jsonl", [{"id": "a"}])
    shop("send", "one.jsonl", *SEND, "--header", "colour=red", "--header", "tenant=other")
    assert handled(shop) == []
    (letter,) = shop("dead", "list", "tenant_shop:shop", "--json").answer
    edit = ("dead", "edit", "tenant_shop:shop", letter["key"], "--note", "tenant")
    assert "nothing is changed" in shop(*edit).error
    assert "has no such header" in shop(*edit, "--remove-header", "size").error
    old = os.umask(0)
    try:
        assert shop("dead", "export", "tenant_shop:shop", "letters.jsonl").code == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE((shop.folder / "letters.jsonl").stat().st_mode) == 0o600
    assert shop(*edit, "--header", "tenant=acme", "--remove-header", "colour").code == 0
    while not handled(shop):  # an edit is delivered after its head start
        assert shop("dead", "list", "tenant_shop:shop", "--json").answer == []
    assert handled(shop) == ["a"]


@pytest.mark.parametrize(
    "settings", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_an_argument_that_is_not_ascii_ends_in_no_traceback(shop: Terminal, settings: dict[str, str]) -> None:
    """A filter, or a name that is quoted in an error."""
    shop.write("one.jsonl", [{"id": "a"}])
    for arguments in (("dead", "list", "tenant_shop:shop", "--type", "€"), ("send", "one.jsonl", "--to", "€")):
        done = in_a_process(shop.folder, *arguments, **settings)
        assert b"Traceback" not in done.stderr, (arguments, done.stderr)
        assert done.returncode in (0, 2), (arguments, done.stderr)


def in_a_process(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with these variables."""
    environment = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "LC_CTYPE")}
    return subprocess.run(
        [sys.executable, "-m", "onceonly", *arguments],
        cwd=folder,
        env={**environment, **settings},
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", [("send", "-", *SEND), ("dead", "import", "sqlite:///s.db", "-")])
def test_ctrl_c_ends_a_wait_for_standard_input(shop: Terminal, arguments: tuple[str, ...]) -> None:
    """With the exit code of a signal, and what was sent before is told."""
    process = subprocess.Popen(
        [*PROGRAM, *arguments], cwd=shop.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    wait_until_it_reads(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err


def wait_until_it_reads(pid: int) -> None:
    """Wait until the main thread of a process waits in a read of its standard input."""
    call = Path(f"/proc/{pid}/syscall")
    while not call.read_text().startswith("0 0x0 "):
        os.sched_yield()
