"""The documentation runs: snippets are executed, generated pages are current, links lead somewhere."""

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from onceonly.assembly import open_transport
from onceonly.ports.transport import Topology
from tests import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
README_WORDS = 1000
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("packages/*/README.md"))]


def snippet(page: Path, first_line: str) -> str:
    """Return the Python block of a page that begins with this line."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if block.startswith(first_line))


@pytest.fixture(name="folder")
def folder_with_the_program(tmp_path: Path) -> Path:
    """Write the README's program into an empty folder."""
    (tmp_path / "shop.py").write_text(snippet(README, "# shop.py"))
    return tmp_path


def shell(folder: Path, command: str) -> str:
    """Run commands as a reader would, with the `onceonly` of this interpreter. Returns standard output."""
    return run_shell(folder, command).stdout


def run_shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run commands that must end with exit code 0."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def commands(page: Path, endpoint: str, folder: Path) -> str:
    """Run the first block of commands on a page that names this endpoint. Returns standard error."""
    text = page.read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if endpoint in block)
    return run_shell(folder, block).stderr


def test_the_readme_takes_three_minutes() -> None:
    """As `wc -w` counts."""
    assert len(README.read_text(encoding="utf-8").split()) <= README_WORDS


def test_the_program_handles_an_order_sent_twice_once(folder: Path) -> None:
    """The README's commands, word for word: the output that it shows, one row, nothing left."""
    (promised,) = re.findall(r"```text\n(.*?)\n```", README.read_text(encoding="utf-8"))
    assert commands(README, "shop:shop", folder).splitlines()[-1] == promised
    count = "import sqlite3; print(sqlite3.connect('shop.db').execute('select count(*) from orders').fetchone()[0])"
    assert shell(folder, f'{sys.executable} -c "{count}"').strip() == "1"
    status = shell(folder, "onceonly status shop:shop --json")
    assert '"waiting":0' in status.replace(" ", "")


@pytest.mark.slow
def test_the_programs_test_passes_at_every_crash_point(folder: Path) -> None:
    """The test on the page about tests, as pytest runs it."""
    (folder / "test_shop.py").write_text(snippet(DOCS / "how-to" / "handler-tests.md", "# test_shop.py"))
    printed = shell(folder, "python -m pytest -q test_shop.py")
    assert re.search(r"22 passed, 6 skipped", printed), printed


def test_the_programs_test_of_failures_passes(folder: Path) -> None:
    """The other test on that page."""
    (folder / "test_failures.py").write_text(snippet(DOCS / "how-to" / "handler-tests.md", "# test_failures.py"))
    assert "1 passed" in shell(folder, "python -m pytest -q test_failures.py")


@pytest.mark.slow
def test_the_programs_test_of_documents_passes_at_every_crash_point(tmp_path: Path) -> None:
    """The example of documents of the application, and its test. The kit uses a store in memory in any case."""
    for name in ("stock.py", "test_stock.py"):
        text = snippet(DOCS / "how-to" / "documents.md", f"# {name}")
        (tmp_path / name).write_text(re.sub(r'store="[^"]+"', 'store="memory://stock"', text))
    printed = shell(tmp_path, "python -m pytest -q test_stock.py")
    assert re.search(r"18 passed, 10 skipped", printed), printed


async def test_the_program_that_publishes_in_its_own_transaction_sends_what_it_committed(folder: Path) -> None:
    """The example of `enlist`: one row, one event, no record left."""
    queue = f"sqlite:///{folder}/queue.db"
    (folder / "place.py").write_text(snippet(DOCS / "how-to" / "transactions.md", "# place.py"))
    async with open_transport(queue, "mail") as mail:
        await mail.declare([Topology(endpoint="mail", events=("OrderPlaced",))])
        await asyncio.to_thread(shell, folder, f"{sys.executable} place.py")
        (arrived,) = await mail.receive(10, 1.0)
    assert arrived.body == b'{"order_id":"A-2"}'
    (status,) = json.loads(shell(folder, "onceonly status shop:shop --json"))
    assert (status["records"], status["waiting"]) == (0, 0)


@pytest.mark.slow
def test_the_bank_keeps_its_account_right_whatever_comes_twice(folder: Path) -> None:
    """The example of an entity, with its commands word for word: two deposits, both of them sent twice."""
    (folder / "bank.py").write_text(snippet(DOCS / "explanation" / "documents.md", "# bank.py"))
    commands(DOCS / "explanation" / "documents.md", "bank:bank", folder)
    read = "import sqlite3; print(sqlite3.connect('bank.db').execute('select state from onceonly_entities').fetchall())"
    assert json.loads(shell(folder, f'{sys.executable} -c "{read}"').strip()[4:-4]) == {"account_id": "A", "balance": 12}


async def test_the_program_that_is_asked_twice_under_one_key_does_it_once(folder: Path) -> None:
    """The example of `transact`: two equal answers, one row, one event, no record left."""
    queue = f"sqlite:///{folder}/queue.db"
    (folder / "request.py").write_text(snippet(DOCS / "how-to" / "transactions.md", "# request.py"))
    async with open_transport(queue, "mail") as mail:
        await mail.declare([Topology(endpoint="mail", events=("OrderPlaced",))])
        printed = await asyncio.to_thread(shell, folder, f"{sys.executable} request.py")
        (arrived,) = await mail.receive(10, 1.0)
    assert printed.strip() == "[{'placed': 'A-3'}, {'placed': 'A-3'}]"
    assert arrived.body == b'{"order_id":"A-3"}'
    count = "import sqlite3; print(sqlite3.connect('shop.db').execute('select count(*) from orders').fetchone()[0])"
    assert shell(folder, f'{sys.executable} -c "{count}"').strip() == "1"
    (status,) = json.loads(shell(folder, "onceonly status shop:shop --json"))
    assert (status["records"], status["waiting"]) == (0, 0)


def pays(folder: Path) -> list[str]:
    """Run the commands of the page about documents that pay something in; gives what they print."""
    (folder / "pay.py").write_text(snippet(DOCS / "explanation" / "documents.md", "# pay.py"))
    text = (DOCS / "explanation" / "documents.md").read_text(encoding="utf-8")
    block = next(each for each in re.findall(r"```console\n(.*?)```", text, re.DOTALL) if "pay.py" in each)
    return [shell(folder, line.removeprefix("$ ")).strip() for line in block.strip().splitlines()]


@pytest.mark.slow
def test_the_bank_is_paid_once_for_each_request(folder: Path) -> None:
    """The transaction of the page about documents, with its bank."""
    (folder / "bank.py").write_text(snippet(DOCS / "explanation" / "documents.md", "# bank.py"))
    assert pays(folder) == ["5", "5", "10"]


@pytest.mark.slow
def test_the_bank_is_paid_once_for_each_request_on_documents(folder: Path, redis_url: str) -> None:
    """The same program with another store."""
    (folder / "bank.py").write_text(
        snippet(DOCS / "explanation" / "documents.md", "# bank.py").replace("sqlite:///bank.db", redis_url)
    )
    assert pays(folder) == ["5", "5", "10"]


def test_generated_pages_are_current() -> None:
    """`make docs` would change nothing."""
    generated = runpy.run_path(str(ROOT / "docs" / "generate" / "__main__.py"))["pages"]()
    assert generated == {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in generated}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    """Every relative link names a file."""
    text = page.read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith(("http", "#"))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub makes for the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_inside_the_project_lead_somewhere(page: Path) -> None:
    """Every relative link with an anchor names a heading of its page."""
    links = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [
        (target, anchor) for target, anchor in links if anchor not in headings(page.parent / target if target else page)
    ] == []


def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    """Lock and settings files record no addresses."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    suspicious = re.compile(r"https?://|index[-]url|/simple(/|\b)|^ *file://", re.MULTILINE)
    files = [ROOT / name for name in tracked if name.endswith((".toml", ".txt", ".lock", ".json", ".cfg", "Makefile"))]
    assert [file.name for file in files if file.exists() and suspicious.search(file.read_text(encoding="utf-8"))] == []
