"""Each command prints names and bodies to a terminal or a pipe that is not UTF-8, and its JSON stays JSON.

`COMMANDS` has an entry for each command. A new command without one fails.
"""

import asyncio
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.core import TyperCommand, TyperGroup

from onceonly.assembly import open_transport
from onceonly.cli import main
from onceonly.cli.app import application
from onceonly.cli.commands import ListedCommand
from onceonly.model.message import Message, Send
from tests.cli.terminal import PROGRAM, logging_restored
from tests.cli.written_modules import forget_modules

pytestmark = pytest.mark.slow

ODD = "5 \N{EURO SIGN} \N{GRINNING FACE} \N{LATIN SMALL LETTER E WITH ACUTE}"
"""What neither ASCII nor Latin-1 has, what has two units in UTF-16, and what Latin-1 has."""
SHOWN = {"ascii": r"5 \u20ac \ud83d\ude00 \u00e9", "latin-1": "5 \\u20ac \\ud83d\\ude00 \N{LATIN SMALL LETTER E WITH ACUTE}"}
ENCODINGS = ("ascii", pytest.param("latin-1", marks=pytest.mark.slow))
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SHOP = "odd_shop:shop"
CODE = f"""
from sqlalchemy import Column, Integer, MetaData, Table
from onceonly import Context, Endpoint, Retry

metadata, RETRY = MetaData(), Retry(immediate=0, delayed=0)
Table("orders {ODD}", metadata, Column("id", Integer, primary_key=True))
shop = Endpoint("shop", store="sqlite:///s.db", transport="sqlite:///q.db", metadata=metadata, retry=RETRY)

@shop.handler(type="Order {ODD}")
async def order(body: dict, context: Context) -> None:
    if body["id"].startswith("bad"):
        raise ValueError("{ODD} \\ud800 " + body["id"])
    context.publish({{"id": "{ODD}"}}, type="Ordered {ODD}")
"""


class Call(NamedTuple):
    """How a command is called: `{key}` and `{mismatch}` are keys of dead letters, `{action}` is an action that deleted one.

    `shows` is whether its answer has the odd text, `until` what it prints when it waits for a signal to end.
    """

    arguments: Sequence[str]
    code: int = 0
    shows: bool = False
    until: str = ""
    input: str = ""


COMMANDS = {
    "run": Call([SHOP, "--drain"]),
    "relay": Call([SHOP], until="relay started"),
    "send": Call(["unknown.json", "--to", SHOP], code=1, shows=True),
    "status": Call([SHOP]),
    "dashboard": Call([SHOP, "--listen", "127.0.0.1:0"], until="dashboard at"),
    "janitor": Call([SHOP]),
    "leave": Call([SHOP], code=1),
    "plan": Call([SHOP, "--rate", "1", "--sample", "1000"]),
    "demo": Call(["--flights", "1", "--kills", "0", "--processes", "1"]),
    "verify": Call(["--list"]),
    "dead list": Call([SHOP], shows=True),
    "dead groups": Call([SHOP], shows=True),
    "dead show": Call([SHOP, "{key}"], shows=True),
    "dead retry": Call([SHOP, "{key}", "--note", "why"]),
    "dead purge": Call([SHOP, "{key}", "--note", "why"]),
    "dead edit": Call([SHOP, "{key}", "good.json", "--note", "why"]),
    "dead send-as-new": Call([SHOP, "{mismatch}", "--note", "why"]),
    "dead restore": Call([SHOP, "{action}"]),
    "dead actions": Call([SHOP], shows=True),
    "dead export": Call([SHOP, "letters.jsonl"]),
    "dead import": Call([SHOP, "exported.jsonl"]),
    "schema create": Call([SHOP]),
    "schema upgrade": Call([SHOP]),
    "schema check": Call([SHOP]),
    "schema print": Call([SHOP]),
    "topology create": Call([SHOP]),
    "topology print": Call([SHOP], shows=True),
    "topology unsubscribe": Call([SHOP, "--type", "Gone"]),
    "metrics alerts": Call([]),
    "metrics grafana": Call([]),
}


@cache
def commands() -> dict[str, TyperCommand]:
    """Return all commands of the application by their names, those of groups too."""
    return dict(in_group(application()))


def in_group(group: TyperGroup, *names: str) -> Iterator[tuple[str, TyperCommand]]:
    """Find the commands of a group."""
    for name, listed in group.commands.items():
        command = listed.load() if isinstance(listed, ListedCommand) else listed
        if isinstance(command, TyperGroup):
            yield from in_group(command, *names, name)
        elif isinstance(command, TyperCommand):
            yield " ".join([*names, name]), command


def test_each_command_has_an_entry() -> None:
    """So a new command is called below."""
    assert set(commands()) == set(COMMANDS)


class Shop(NamedTuple):
    """A directory with an endpoint whose names and messages are odd, and what its dead letters are called."""

    folder: Path
    names: dict[str, str]

    def arguments(self, name: str, *, as_json: bool = False) -> list[str]:
        """Return the whole command line of an entry."""
        given = [each.format(**self.names) for each in COMMANDS[name].arguments]
        return [*name.split(), *given, *(["--json"] if as_json else [])]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Make it once: dead letters, one deleted by an action, and a message that waits."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd_shop.py").write_text(CODE, encoding="utf-8")
    place = f"sqlite:///{folder}/q.db"
    call = ("--to", SHOP, "--type", f"Order {ODD}", "--id-from", "id")

    def write(name: str, *items: object) -> str:
        text = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        (folder / name).write_text(text, encoding="utf-8")
        return name

    def answer(*arguments: str) -> str:
        done = printed(folder, "utf-8", *arguments)
        assert done.code == 0, done
        return done.out

    async def send_what_no_receiver_reads() -> None:
        body = rb'{"id": "bad \ud800"}'
        async with open_transport(place, "test") as transport:
            await transport.send([Send(message=Message(id="0", source=ODD, type=f"Order {ODD}", body=body), to="shop")])

    answer("topology", "create", SHOP)
    answer("send", write("bad.jsonl", {"id": f"bad {ODD}"}, {"id": "bad too"}, {"id": "done"}), *call)
    asyncio.run(send_what_no_receiver_reads())
    answer("run", SHOP, "--drain")
    answer("send", write("mismatch.jsonl", {"id": "done", "other": ODD}), *call)
    answer("run", SHOP, "--drain")
    letters = json.loads(answer("dead", "list", SHOP, "--json"))
    assert len(letters) == 4
    keys = {each["id"]: each["key"] for each in letters}
    answer("dead", "export", SHOP, "exported.jsonl")
    answer("dead", "purge", SHOP, keys["bad too"], "--note", ODD)
    (action,) = json.loads(answer("dead", "actions", SHOP, "--json"))
    answer("send", write("good.jsonl", {"id": ODD}), *call)
    write("unknown.json", {"specversion": "1.0", "id": ODD, "source": ODD, "type": f"Other {ODD}"})
    write("good.json", {"id": ODD})
    return Shop(folder, {"key": keys[f"bad {ODD}"], "mismatch": keys["done"], "action": str(action["action"])})


@pytest.fixture(name="shop")
def copied(made: Shop, tmp_path: Path) -> Shop:
    """Return a copy of it."""
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    return made._replace(folder=tmp_path)


class Printed(NamedTuple):
    """What a command has printed to streams in an encoding that they refuse to leave."""

    code: object
    out: str
    error: str


def printed(folder: Path, encoding: str, *arguments: str, text: str = "") -> Printed:
    """Run a command in this process."""
    forget_modules(folder)
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, "strict", write_through=True) for _ in range(2)]
    with pytest.MonkeyPatch.context() as changed, logging_restored():
        changed.chdir(folder)
        changed.setattr(sys, "path", list(sys.path))
        changed.setattr(sys, "dont_write_bytecode", True)
        changed.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            changed.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    for stream in streams:
        stream.flush()
        stream.seek(0)
    return Printed(ended.value.code or 0, *(stream.read() for stream in streams))


def in_one_line(text: str) -> str:
    """Join the lines and the cells of a table."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", [name for name, call in COMMANDS.items() if not call.until])
def test_a_command_prints_escapes(name: str, encoding: str, shop: Shop) -> None:
    """Of what the encoding does not have, the same in all commands."""
    call = COMMANDS[name]
    done = printed(shop.folder, encoding, *shop.arguments(name), text=call.input)
    assert "Traceback" not in done.error
    assert done.code == call.code, done
    if call.shows:
        assert SHOWN[encoding] in in_one_line(done.out + done.error)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "name", [name for name, command in commands().items() if any("--json" in each.opts for each in command.params)]
)
def test_json_is_json_in_every_encoding(name: str, encoding: str, shop: Shop) -> None:
    r"""An escape such as `\xe9` or `\U0001f600` would end that. Here the odd text is read back."""
    call = COMMANDS[name]
    done = printed(shop.folder, encoding, *shop.arguments(name, as_json=True), text=call.input)
    assert done.code == call.code, done
    answer = json.loads(done.out)
    if call.shows:
        assert ODD in json.dumps(answer, ensure_ascii=False)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_printed(name: str, encoding: str, tmp_path: Path) -> None:
    """With its frames and quotation marks."""
    done = printed(tmp_path, encoding, *name.split(), "--help")
    assert done.code == 0, done
    assert "Usage: onceonly" in done.out


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in {"dead list", "relay"} else [pytest.mark.slow]) for name in COMMANDS]
)
def test_a_command_works_where_the_locale_is_ascii(name: str, shop: Shop) -> None:
    """In a process of its own, where it also reads and writes files, until a signal where it waits for one."""
    call = COMMANDS[name]
    if not call.until:
        done = in_a_process(shop.folder, *shop.arguments(name), text=call.input, **ASCII_LOCALE)
        assert b"Traceback" not in done.stderr
        assert done.returncode == call.code, done.stderr
        if call.shows:
            assert SHOWN["ascii"] in in_one_line((done.stdout + done.stderr).decode("ascii"))
        return
    command = [*PROGRAM, *shop.arguments(name)]
    environment = surroundings(**ASCII_LOCALE)
    with subprocess.Popen(
        command, cwd=shop.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        said = next((line for line in lines if call.until.encode() in line), None)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert said is not None
    assert b"UnicodeEncodeError" not in rest
    assert process.returncode in (0, 130)


def surroundings(**settings: str) -> dict[str, str]:
    """Return the variables of this process without a locale, and with these."""
    kept = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8")}
    return {**kept, **settings}


def in_a_process(folder: Path, *arguments: str, text: str = "", **settings: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with these variables."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=surroundings(**settings),
        input=text.encode(),
        capture_output=True,
        check=False,
        timeout=120,
    )
