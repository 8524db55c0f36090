"""Alembic makes onceonly's tables next to the user's, or leaves them alone; by asynchronous drivers, on every SQL database."""

import asyncio
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace
from sqlalchemy import text, update
from sqlalchemy.engine import make_url

from onceonly.model.errors import SchemaMissing, SetupError
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import dialect_of, open_database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.schema import check, create, drop, versions_table
from onceonly.sql.store import SCHEMA as STORE
from tests.sql.conftest import place_named
from tests.sql.every_database import SERVERS

command = pytest.importorskip("alembic.command", reason="needs the extra onceonly[alembic]")
Config = pytest.importorskip("alembic.config").Config
onceonly_alembic = import_module("onceonly.alembic")

ENV = """
import asyncio
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.ext.asyncio import create_async_engine
from onceonly.alembic import ignore_tables, configure_options

metadata = MetaData()
Table(context.config.get_main_option("own"), metadata, Column("id", Integer, primary_key=True))
others = ignore_tables(PREFIX)

def leave_others(name, kind, parents):
    return kind != "table" or name.startswith((context.config.get_main_option("own"), PREFIX))

def migrate(connection):
    context.configure(connection=connection, OPTIONS)
    with context.begin_transaction():
        context.run_migrations()

async def connect():
    engine = create_async_engine(context.config.get_main_option("url"))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()

asyncio.run(connect())
"""
TEMPLATE = '''"""${message}"""
import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

def upgrade() -> None:
    ${upgrades if upgrades else "pass"}

def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
'''
WITH_TABLES = "include_name=leave_others, version_table=OWN + '_version', **configure_options(metadata, prefix=PREFIX)"
ALONE = (
    "target_metadata=metadata, version_table=OWN + '_version', include_name=lambda *them: leave_others(*them) and others(*them)"
)


class Project:
    """A user's project: an environment of Alembic, a table, and a database that it shares with others."""

    def __init__(self, folder: Path, url: str) -> None:
        self.own = f"own{uuid4().hex[:8]}"
        self.prefix = f"{self.own}_once_"
        self.url = str(make_url(url).set(query={}).render_as_string(hide_password=False))
        self.folder = folder
        self.config = Config()
        dialect = dialect_of(make_url(self.url))
        driver = {"sqlite": "sqlite+aiosqlite", "mysql": "mysql+asyncmy"}.get(dialect.name)
        place = make_url(self.url).set(drivername=driver) if driver else make_url(self.url)
        self.config.set_main_option("script_location", str(folder))
        self.config.set_main_option("own", self.own)
        self.config.set_main_option("url", place.render_as_string(hide_password=False).replace("%", "%%"))
        (folder / "versions").mkdir(parents=True)
        (folder / "script.py.mako").write_text(TEMPLATE)

    def configure(self, options: str) -> None:
        """Write `env.py`."""
        own = ENV.replace("OPTIONS", options).replace("PREFIX", repr(self.prefix)).replace("OWN", repr(self.own))
        (self.folder / "env.py").write_text(own)

    def generate(self) -> str:
        """Have Alembic compare and write a revision; gives it."""
        before = set((self.folder / "versions").glob("*.py"))
        command.revision(self.config, "change", autogenerate=True)
        (made,) = set((self.folder / "versions").glob("*.py")) - before
        return made.read_text()

    async def check(self) -> None:
        """Check what endpoints check at start."""
        database = await open_database(self.url, clock=LIVE.clock, prefix=self.prefix)
        try:
            await check(database, STORE)
            await check(database, QUEUE)
        finally:
            await database.close()

    async def make(self) -> None:
        """Do what `onceonly schema create` does."""
        database = await open_database(self.url, clock=LIVE.clock, prefix=self.prefix)
        await create(database, STORE)
        await create(database, QUEUE)
        await database.close()

    async def set_version(self, version: int) -> None:
        """Pretend that the store's tables are of another version, and older by an index."""
        database = await open_database(self.url, clock=LIVE.clock, prefix=self.prefix)
        index = f"{self.prefix}dead_letters_identity"
        on = "" if database.dialect.name != "mysql" else f" ON {self.prefix}dead_letters"
        async with database.writing() as connection:
            await connection.execute(
                update(versions_table(database)).where(text("component = 'store'")).values(version=version)
            )
            await connection.execute(text(f"DROP INDEX {index}{on}"))
        await database.close()

    async def clean_up(self) -> None:
        """Drop all."""
        database = await open_database(self.url, clock=LIVE.clock, prefix=self.prefix)
        await drop(database, STORE, QUEUE)
        async with database.writing() as connection:
            for table in (self.own, f"{self.own}_version"):
                await connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
        await database.close()


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVERS)])
def project(request: pytest.FixtureRequest, tmp_path: Path, file: Path) -> Iterator[Project]:
    """Begin a project."""
    project = Project(tmp_path / "migrations", place_named(request.param, request, file))
    yield project
    asyncio.run(project.clean_up())


def test_autogenerate_makes_the_tables_and_then_nothing(project: Project) -> None:
    """One migration for the user's tables and onceonly's. An endpoint accepts them. Its downgrade drops them."""
    project.configure(WITH_TABLES)
    made = project.generate()
    assert made.count("op.create_table(") == 1 + len(onceonly_alembic.tables().tables)
    command.upgrade(project.config, "head")
    asyncio.run(project.check())
    again = project.generate()
    assert again.count("    pass") == 2
    assert "op." not in again
    command.downgrade(project.config, "base")
    with pytest.raises(SchemaMissing, match="tables of the store do not exist"):
        asyncio.run(project.check())
    command.upgrade(project.config, "head")
    asyncio.run(project.check())


def test_tables_that_alembic_shall_ignore_are_not_dropped(project: Project) -> None:
    """With `include_name` alone; without it autogenerate would drop them."""
    asyncio.run(project.make())
    project.configure(ALONE)
    made = project.generate()
    assert "drop" not in made.partition("def downgrade")[0]
    assert made.count("op.create_table(") == 1
    command.upgrade(project.config, "head")
    assert "op." not in project.generate()
    asyncio.run(project.check())
    project.configure(ALONE.replace(" and others(*them)", ""))
    command.upgrade(project.config, "head")
    assert f"op.drop_table('{project.prefix}records')" in project.generate()


def test_tables_of_an_earlier_version_are_upgraded_by_a_call(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autogenerate would leave out what a step does with the data, so it says what to write."""
    project.configure(WITH_TABLES)
    project.generate()
    command.upgrade(project.config, "head")
    asyncio.run(project.set_version(STORE.version - 1))
    step = replace(STORE, upgrades={STORE.version - 1: lambda _connection, _tables: None})
    monkeypatch.setattr(onceonly_alembic, "_SCHEMAS", {**onceonly_alembic._SCHEMAS, "store": step})
    with pytest.raises(SetupError, match=r"onceonly\.alembic\.upgrade_tables"):
        project.generate()
    command.revision(project.config, "upgrade onceonly")
    (revision,) = (each for each in (project.folder / "versions").glob("*.py") if "upgrade_onceonly" in each.name)
    called = f"from onceonly.alembic import upgrade_tables as it\n    it(op.get_bind(), prefix={project.prefix!r})"
    revision.write_text(revision.read_text().replace("pass", called, 1))
    command.upgrade(project.config, "head")
    asyncio.run(project.check())
    assert "op." not in project.generate()


def test_an_unknown_use_is_refused() -> None:
    """With the names that there are."""
    with pytest.raises(SetupError, match="store, transport, documents, http"):
        onceonly_alembic.tables(components=["queue"])
