"""The register in memory: a row is the permission to keep an artifact, and a commit takes its own rows away."""

import pytest

from onceonly.adapters.memory.store import MemoryStore, Notebook, StoreWorld, take_rows
from onceonly.adapters.memory.world import Live
from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly_conformance.clock import START, ManualClock
from onceonly_verify.memory_ports.register import MemoryRegister, cancel, open_rows, remove

M1, M2 = Identity("till", "m1"), Identity("till", "m2")
A = Reservation(identity=M1, unit="", attempt="a", at=1)
B = Reservation(identity=M1, unit="", attempt="b", at=2)
C = Reservation(identity=M2, unit="order/17", attempt="c", at=3)
CANCELLED_A = Reservation(identity=M1, unit="", attempt="a", at=1, cancelled=True)


TWO = (Record(M1, attempt="a"), Record(M1, attempt="b"))


def world(*rows: Reservation) -> StoreWorld:
    """Return a world with these rows."""
    return StoreWorld(rows=rows)


def test_a_commit_takes_its_own_rows_away() -> None:
    """All of them in one step, and no others."""
    assert take_rows(world(A, B, C), TWO) == world(C)
    assert take_rows(world(A), ()) == world(A)


def test_a_commit_with_a_cancelled_row_is_a_conflict() -> None:
    """Its artifact may be unmade already; none of its rows goes."""
    assert take_rows(world(CANCELLED_A, B), TWO) is None


def test_a_commit_whose_row_is_gone_is_a_conflict() -> None:
    """Somebody cancelled it, unmade its artifact and removed it."""
    assert take_rows(world(B), TWO) is None


def test_cancelling_says_whether_there_is_a_row() -> None:
    """None is left of an artifact that was published; a row that is cancelled stays so."""
    assert cancel(world(A, B), A) == (world(CANCELLED_A, B), True)
    assert cancel(world(CANCELLED_A), A) == (world(CANCELLED_A), True)
    assert cancel(world(B), A) == (world(B), False)


def test_only_a_cancelled_row_is_removed() -> None:
    """An open one is somebody's permission; and a row that is gone is no obstacle."""
    assert remove(world(CANCELLED_A, B), A)[0] == world(B)
    assert remove(world(A), A)[0] == world(A)
    assert remove(world(B), A)[0] == world(B)


def test_a_cancelled_row_is_not_opened_again() -> None:
    """It would give the permission back; the other rows are written, each by itself."""
    after, outcome = open_rows(world(CANCELLED_A), (A, B), 9)
    assert after == world(CANCELLED_A, B)
    assert outcome.kind is ConflictError


async def test_rows_are_found_by_message_and_unit() -> None:
    """Those of the messages asked for, in the unit asked for."""
    register = MemoryRegister(Live(), "shop")
    await register.open([A, B, C])
    assert await register.rows([M1]) == (A, B)
    assert await register.rows([M1, M2], "order/17") == (C,)
    assert await register.rows([M2]) == ()


async def test_rows_are_stamped_and_listed_oldest_first() -> None:
    """With the time they were opened, unless they say one themselves."""
    clock = ManualClock()
    register = MemoryRegister(Live(), "shop", clock=clock)
    await register.open([Reservation(identity=M1, unit="", attempt="late")])
    await register.open([B, A])
    assert [(row.attempt, row.at) for row in await register.old(START + 1, 10)] == [("a", 1), ("b", 2), ("late", START)]
    assert [row.attempt for row in await register.old(START, 1)] == ["a"]
    assert await register.old(1, 10) == ()


async def test_a_row_goes_its_whole_way() -> None:
    """Opened, cancelled, and removed after its artifact was unmade; opening it twice is a ConflictError on the way."""
    register = MemoryRegister(Live(), "shop")
    await register.open([A])
    with pytest.raises(ConflictError):
        await register.open([A])
    assert await register.cancel(A)
    assert await register.rows([M1]) == (CANCELLED_A,)
    await register.remove(A)
    assert not await register.cancel(A)
    assert await register.rows([M1]) == ()


async def test_the_store_takes_a_row_with_its_commit() -> None:
    """The second attempt at a message finds the row of its own cancelled: nothing of it is committed."""
    driver = Live()
    store, register = MemoryStore(driver, "shop"), MemoryRegister(driver, "shop")
    await register.open([A, C])
    unit = await store.begin([])
    await unit.commit([Record(M1, attempt="a")])
    assert await register.rows([M1]) == ()
    assert await register.cancel(C)
    unit = await store.begin([])
    unit.resources.get(Notebook).write("c", 1)
    with pytest.raises(ConflictError, match="cancelled"):
        await unit.commit([Record(M2, attempt="c")])
    assert store.notes() == ()


async def test_endpoints_do_not_share_rows() -> None:
    """Each has its own store."""
    driver = Live()
    await MemoryRegister(driver, "shop").open([A])
    assert await MemoryRegister(driver, "mail").rows([M1]) == ()
