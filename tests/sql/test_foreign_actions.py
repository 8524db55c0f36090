"""Rows of actions that cannot be read cost themselves. SQLite stores a value of any type in any column."""

import random

from onceonly.model.action import Action, ActionItem, ActionKind, ItemOutcome
from onceonly.sql.database import Database
from onceonly.sql.store import SqlDeadLetters
from onceonly.sql.store.tables import tables
from tests.fuzzing import inputs

VALUES: tuple[object, ...] = (
    0,
    -1,
    2**63 - 1,
    0.5,
    1e300,
    "",
    "a\0'",
    "{}",
    "[]",
    '{"keys": 1}',
    "[" * 3000,
    b"\xff",
    b"{}",
    "running",
)
BATCH = 500


async def test_fuzz_rows_of_actions(database: Database) -> None:
    """Good actions and good items are listed next to others."""
    log, rng = SqlDeadLetters(database).actions, random.Random(38)  # noqa: S311 - inputs
    own = tables(database.prefix)
    good = await log.begin(Action(actor="a", method="cli", action=ActionKind.RETRY, endpoint="shop", runner="r", lease=1))
    assert await log.plan(good, [ActionItem(action=good.position, number=1, letter="l", outcome=ItemOutcome.PLANNED)])
    for start in range(0, inputs(), BATCH):
        for table, fixed in ((own.actions, {"position"}), (own.action_items, {"action", "number"})):
            names = [column.name for column in table.c]
            rows = [
                tuple(
                    (number + 2 if name in {"position", "number"} else good.position) if name in fixed else rng.choice(VALUES)
                    for name in names
                )
                for number in range(start, start + BATCH)
            ]
            async with database.writing() as connection:
                await connection.exec_driver_sql(
                    f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",  # noqa: S608 - our own names
                    rows,
                )
        assert good in await log.recent(limit=BATCH + 1)
        assert good in await log.abandoned(2, limit=BATCH + 1)
        assert 1 in [item.number for item in await log.items(good.position, limit=BATCH + 1)]
        async with database.writing() as connection:
            await connection.execute(own.actions.delete().where(own.actions.c.position != good.position))
            await connection.execute(own.action_items.delete().where(own.action_items.c.number != 1))
