"""Rows of objects that a handler only adds may be written with those of later messages, and nothing can see that."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, text
from sqlalchemy.orm import Session

from tests.differential.models import CURRENT, Branch, Note
from tests.differential.named import does, only_on, same
from tests.differential.operations import SERVERS, Operation
from tests.differential.programs import Kind, Message, together
from tests.differential.run import Runner
from tests.differential.test_own_objects import synchronous_of
from tests.differential.tools import Tools

KINDS = pytest.mark.parametrize("kind", [Kind.SESSION, Kind.DEF_SESSION, Kind.PROVIDER], ids=lambda kind: kind.value)
Work = Callable[[Tools], Awaitable[Any]]


@dataclass(frozen=True)
class Do(Operation):
    """Calls a function, and notes what it returns."""

    work: Work

    async def run(self, to: Tools) -> None:
        """Call it."""
        self.note(to, await self.work(to))


def doing(work: Work, kind: Kind = Kind.SESSION) -> Message:
    """Make a message."""
    return does(Do(work), kind=kind)


def adding(kind: Kind = Kind.SESSION, **values: Any) -> Message:
    """Make a message that adds a note."""

    async def add(to: Tools) -> None:
        to.session.add(Note(**{"what": f"added by {to.message}", **values}))

    return doing(add, kind)


@contextmanager
def listening(target: Any, name: str, function: Callable[..., Any], **options: Any) -> Iterator[None]:
    """Listen for a while."""
    event.listen(target, name, function, **options)
    try:
        yield
    finally:
        event.remove(target, name, function)


@KINDS
def test_a_default_that_replaces_none_is_called_in_the_context_of_the_handler(runner: Runner, kind: Kind) -> None:
    """A flush leaves out an attribute that is None, so that the default applies."""
    same(runner, adding(kind, made_by=None), adding(made_by=None), adding(kind, made_by="me"), adding(kind))


@KINDS
def test_the_users_type_for_one_database_is_called_in_the_context_of_the_handler(runner: Runner, kind: Kind) -> None:
    """The type of the column is SQLAlchemy's own, with a variant."""
    same(runner, adding(kind, stamp="first"), adding(kind, stamp="second"), adding(kind))


def test_objects_are_inserted_in_order_when_something_keeps_some_of_them(runner: Runner) -> None:
    """Their numbers are in the order in which they were added."""
    kept: list[Note] = []

    async def add(to: Tools) -> None:
        for place in ("first", "second", "third", "fourth"):
            to.session.add(made := Note(what=f"{place} of {to.message}"))
            if place in {"second", "fourth"}:
                kept.append(made)

    same(runner, doing(add), adding(), doing(add), adding())


@KINDS
def test_a_row_before_the_one_that_it_refers_to_fails_its_message(runner: Runner, kind: Kind) -> None:
    """Foreign keys are checked at the end of a statement on PostgreSQL, so one INSERT for both would succeed."""

    async def add(to: Tools) -> None:
        to.session.add_all([Branch(id=1, grows_on=2), Branch(id=2)])

    async def add_in_order(to: Tools) -> None:
        to.session.add_all([Branch(id=3), Branch(id=4, grows_on=3)])

    same(runner, doing(add, kind), doing(add_in_order, kind), adding())


async def _translate_by_session(to: Tools) -> None:
    """Choose a schema that does not exist."""
    connection = await to.session.connection()
    synchronous_of(connection).execution_options(schema_translate_map={None: "nowhere"})
    to.session.add(Note(what="of another tenant"))


@pytest.mark.parametrize("kind", [Kind.SESSION, Kind.DEF_SESSION], ids=lambda kind: kind.value)
def test_objects_are_inserted_with_the_options_of_their_connection(runner: Runner, kind: Kind) -> None:
    """A tenant's rows must not be inserted into the tables of the default schema."""
    only_on(runner, SERVERS)
    same(runner, doing(_translate_by_session, kind), adding())


@pytest.mark.parametrize("kind", [Kind.SESSION, Kind.DEF_SESSION], ids=lambda kind: kind.value)
def test_objects_are_inserted_with_the_options_of_their_session(runner: Runner, kind: Kind) -> None:
    """SQLAlchemy applies them when the session first uses its connection, which the reference does before the handler."""
    only_on(runner, SERVERS)

    async def translate(to: Tools) -> None:
        found = synchronous_of(to.session)
        found.execution_options = found.execution_options.union({"schema_translate_map": {None: "nowhere"}})
        to.session.add(Note(what="of another tenant"))

    async def add_without(to: Tools) -> None:
        if "schema_translate_map" in synchronous_of(to.session).execution_options:
            raise LookupError
        to.session.add(Note(what="of no tenant"))

    program = together(doing(translate, kind), doing(add_without, kind), doing(add_without, kind))
    for isolated in (False, True):
        ran = runner.run(runner.bench.shop.run(program, isolated=isolated))
        assert ran.failed.keys() == {0}
        assert [row[0] for row in ran.rows["notes"]] == ["of no tenant"] * 2


@pytest.mark.parametrize("kind", [Kind.SESSION, Kind.DEF_SESSION], ids=lambda kind: kind.value)
def test_a_listener_on_the_connection_hears_the_insert(runner: Runner, kind: Kind) -> None:
    """It ends with the handler, so it can only hear a flush at the handler's end."""
    heard: list[str] = []

    async def listen(to: Tools) -> None:
        heard.clear()
        event.listen(synchronous_of(await to.session.connection()), "before_execute", lambda *_: heard.append("heard"))
        to.session.add(Note(what="heard"))

    async def count(_to: Tools) -> int:
        return len(heard)

    same(runner, doing(listen, kind), doing(count))


def test_a_listener_on_all_engines_hears_the_insert_in_the_context_of_the_handler(runner: Runner) -> None:
    """Such as one that rewrites statements for a tenant."""

    def stamp(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        return statement.replace("INSERT INTO diff_notes", f"INSERT /* {heard(statement)} */ INTO diff_notes"), parameters

    inserted: list[str] = []

    def heard(statement: str) -> str:
        if "INTO diff_notes" in statement:
            inserted.append(CURRENT.get())
        return CURRENT.get()

    async def read(_to: Tools) -> list[str]:
        found = inserted.copy()
        inserted.clear()
        return found

    with listening(Engine, "before_cursor_execute", stamp, retval=True):
        same(runner, adding(), adding(kind=Kind.DEF_SESSION), doing(read))


def test_a_listener_that_prepares_each_transaction_of_a_session_is_called(runner: Runner) -> None:
    """`after_begin` is where applications set the tenant of row-level security."""
    begun: list[str] = []

    def begin(*_: Any) -> None:
        begun.append(CURRENT.get())

    async def ask(to: Tools) -> None:
        await to.session.connection()

    async def read(_to: Tools) -> int:
        return len(begun)

    with listening(Session, "after_begin", begin):
        for kind in (Kind.SESSION, Kind.DEF_SESSION, Kind.PROVIDER):
            begun.clear()
            same(runner, adding(kind), adding(kind), doing(ask))
            assert len(begun) == _RUNS * 3
            begun.clear()


_RUNS = 4
"""Of each program: isolated and not, on both sides."""


@pytest.mark.parametrize("name", ["before_attach", "after_attach", "transient_to_pending"])
def test_a_listener_for_new_objects_is_called_once_for_each(runner: Runner, name: str) -> None:
    """Also when something keeps the object."""
    heard: list[str] = []
    kept: list[Note] = []

    async def keep(to: Tools) -> None:
        to.session.add(made := Note(what="kept"))
        kept.append(made)

    with listening(Session, name, lambda *_: heard.append(name)):
        same(runner, doing(keep), adding(), doing(keep, Kind.DEF_SESSION))
    assert len(heard) == _RUNS * 3


def _note_commit(session: Session) -> None:
    session.execute(insert(Note).values(what="before the commit", made_by="listener"))


@KINDS
def test_a_listener_that_waits_for_the_commit_is_called_once(runner: Runner, kind: Kind) -> None:
    """On the class, and on the session."""

    async def listen(to: Tools) -> None:
        event.listen(synchronous_of(to.session), "before_commit", _note_commit)
        to.session.add(Note(what="added"))

    async def read(to: Tools) -> None:
        await to.session.execute(text("SELECT 1"))

    same(runner, doing(listen, kind), adding(kind))
    with listening(Session, "before_commit", _note_commit):
        same(runner, adding(kind), doing(read, kind), adding(kind))


@KINDS
def test_what_listeners_add_after_a_flush_is_flushed(runner: Runner, kind: Kind) -> None:
    """Each flush may add something, as in the commit of a session."""

    def add(session: Session, _flush: Any) -> None:
        for found in session.new:
            if isinstance(found, Note) and len(found.what) < 12:
                session.add(Note(what=f"{found.what}+"))

    def add_after(session: Session, _flush: Any) -> None:
        for found in session.identity_map.values():
            if isinstance(found, Note) and len(found.what) < 12:
                session.add(Note(what=f"{found.what}+"))
                session.expunge(found)

    for name, function in (("after_flush", add), ("after_flush_postexec", add_after)):
        with listening(Session, name, function):
            same(runner, adding(kind, what="a note"), adding(kind))
