"""The guide for Alembic, word for word, on SQLite: its migration makes a store that an endpoint accepts."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from tests import ROOT
from tests.docs.test_documentation import run_shell, snippet

PAGE = (ROOT / "docs" / "how-to" / "alembic.md").read_text(encoding="utf-8")
CONSOLES = [dedent(block).replace("$ ", "") for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)]
PROGRAMS = [dedent(block) for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)]


@pytest.fixture(name="folder")
def folder_with_migrations(tmp_path: Path) -> Path:
    """Follow the page up to the first migration."""
    pytest.importorskip("alembic", reason="needs the extra onceonly[alembic]")
    (tmp_path / "shop.py").write_text(snippet(ROOT / "README.md", "# shop.py"))
    initial, first = CONSOLES
    run_shell(tmp_path, initial)
    (tmp_path / "migrations" / "env.py").write_text(PROGRAMS[0])
    run_shell(tmp_path, first)
    return tmp_path


@pytest.mark.slow
def test_the_migration_makes_tables_that_an_endpoint_uses(folder: Path) -> None:
    """Also after a downgrade and another upgrade. The endpoint creates none itself."""
    (script,) = (folder / "migrations" / "versions").glob("*.py")
    assert {"orders", "onceonly_records"} <= set(re.findall(r"create_table\('(\w+)'", script.read_text()))
    environment = "export DATABASE=sqlite:///shop.db PYTHONPATH=."
    run_shell(folder, f"{environment}\nalembic downgrade base\nalembic upgrade head")
    done = run_shell(
        folder,
        """echo '{"order_id": "A-1", "total": 30}' > orders.jsonl
onceonly send orders.jsonl --to shop:shop --type PlaceOrder --id-from order_id
onceonly run shop:shop --drain --store 'sqlite:///shop.db?create=false'""",
    )
    assert "1 handled" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.slow
def test_the_migration_for_an_upgrade_runs(folder: Path) -> None:
    """It changes nothing where everything is current."""
    environment = "export DATABASE=sqlite:///shop.db PYTHONPATH=."
    run_shell(folder, f"{environment}\nalembic revision -m upgrade")
    (script,) = (folder / "migrations" / "versions").glob("*_upgrade.py")
    text = script.read_text()
    imports, _, function = PROGRAMS[1].partition("\n\n\n")
    text = re.sub(r"def upgrade\(\) -> None:.*?(?=def downgrade)", function.strip() + "\n\n\n", text, flags=re.DOTALL)
    script.write_text(text.replace("from alembic import op\n", imports + "\n"))
    assert "upgrade_tables(op.get_bind()" in script.read_text()
    run_shell(folder, f"{environment}\nalembic upgrade head\nonceonly schema check sqlite:///shop.db --component store")


@pytest.mark.slow
def test_autogenerate_ignores_tables_that_onceonly_created(tmp_path: Path) -> None:
    """The other way, with the options of the page in its env.py."""
    pytest.importorskip("alembic", reason="needs the extra onceonly[alembic]")
    (tmp_path / "shop.py").write_text(snippet(ROOT / "README.md", "# shop.py"))
    run_shell(tmp_path, CONSOLES[0])
    imports, _, configure = PROGRAMS[2].partition("\n\n")
    old = re.search(r"context\.configure\(.*\)\n", PROGRAMS[0])
    assert old is not None
    env = PROGRAMS[0].replace("from onceonly.alembic import configure_options", imports).replace(old.group(), configure)
    (tmp_path / "migrations" / "env.py").write_text(env)
    run_shell(
        tmp_path,
        """export DATABASE=sqlite:///shop.db PYTHONPATH=.
onceonly schema create sqlite:///shop.db --component store
alembic revision --autogenerate -m first""",
    )
    (script,) = (tmp_path / "migrations" / "versions").glob("*.py")
    changes = script.read_text().partition("def upgrade")[2].partition("def downgrade")[0]
    assert re.findall(r"op\.(\w+)\('(\w+)'", changes) == [("create_table", "orders")]
