"""The statements in the docstring of the module `claims` are those that each database gets."""

import inspect
import re

from sqlalchemy import event

from onceonly.sql.store import SqlStore, claims
from tests.sql.every_database import emptied
from tests.sql.harness import messages, records


async def claim_statements(place: str) -> list[str]:
    """Claim two messages that have no instant, and then again; gives the INSERT and the SELECT as they were sent."""
    heard: list[str] = []

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        heard.append(" ".join(statement.split()))

    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        unit = await store.begin(messages(2))
        await unit.commit(records(*unit.found.new))
        event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
        (await store.begin(messages(2))).abandon()
        event.remove(database.engine.sync_engine, "before_cursor_execute", hear)
        table = f"{database.prefix}claims"
    return [re.sub(rf"\b{database.prefix}", "onceonly_", each) for each in heard if table in each]


async def test_the_statements_of_the_docstring_are_sent(place: str) -> None:
    """The INSERT that claims, and the SELECT that reads what was claimed before."""
    written = " ".join((inspect.getdoc(claims) or "").split())
    sent = await claim_statements(place)
    assert [each.split()[0] for each in sent] == ["INSERT", "SELECT"]
    numbers = {"key_list": "$1", "fingerprint_list": "$2", "keys": "$1"}  # psycopg has names for the parameters
    sent = [re.sub(r"%\((\w+)\)s", lambda found: numbers[found[1]], each.replace("unhex(%s)", "%s")) for each in sent]
    assert [each for each in sent if each not in written] == []
