"""A message that ruins every unit it is in becomes a dead letter, and holds no other up; an outage counts nothing."""

from collections.abc import AsyncIterator

import pytest

from tests.faults.shop_harness import Place, Shop, address, idle_limited, opened_shop, through
from tests.servers.proxy import Inspector, Proxy, listening

GOOD = [Place(f"good {number:02}") for number in range(50)]


@pytest.fixture(params=["postgresql", "mariadb"])
def store(request: pytest.FixtureRequest) -> str:
    """Name a database."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["rabbitmq", "sql"])
async def shop(request: pytest.FixtureRequest, store: str) -> AsyncIterator[Shop]:
    """Make a shop on it."""
    async with opened_shop(store, queue=request.param) as shop:
        yield shop


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "race", "deadlock"])
async def test_a_message_that_ruins_its_unit_is_given_up_and_the_others_are_handled(shop: Shop, how: str) -> None:
    """It says why, and took as many equal failures as that needs."""
    await shop.send(*GOOD[:25], Place("bad", how), *GOOD[25:])
    async with shop.endpoint().running():
        await shop.until_rows(50)
        await shop.until_dead(1)
    assert await shop.rows() == [message.id for message in GOOD]
    letter = (await shop.dead())["bad"]
    assert letter.reason.startswith("its unit fails with this message and is committed without its handler: ")
    assert letter.attempts == 1
    assert shop.runs["bad"] >= 5


@pytest.mark.parametrize("how", ["KeyboardInterrupt", "SystemExit"])
async def test_what_ends_a_process_fails_its_message_only(shop: Shop, how: str) -> None:
    """The process lives on."""
    await shop.send(*GOOD[:25], Place("bad", how), *GOOD[25:])
    async with shop.endpoint().running():
        await shop.until_rows(50)
        await shop.until_dead(1)
    assert (await shop.dead())["bad"].reason == how


@pytest.mark.slow
async def test_a_full_table_gives_up_what_needs_it_while_others_are_handled(shop: Shop) -> None:
    """The disk of one table is full; messages that do not write there are handled."""
    await shop.send(Place("bad", "full"))
    async with shop.feeding(), shop.endpoint().running():
        await shop.until_dead(1)
    dead = await shop.dead()
    assert [*dead] == ["bad"]
    assert "StoreUnavailable" in dead["bad"].reason


@pytest.mark.slow
async def test_a_full_disk_gives_nothing_up(shop: Shop) -> None:
    """Where nothing else is handled, nothing is counted, however often it is tried."""
    await shop.send(Place("bad", "full"), Place("worse", "full"))

    async def tried_often() -> bool:
        return shop.runs["bad"] > 5 and shop.runs["worse"] > 5

    async with shop.endpoint().running():
        await shop.until(tried_often)
    assert await shop.dead() == {}


class Cutting(Proxy):
    """Takes connections and statements, and cuts the connection before anything is committed."""

    is_away = False
    cuts = 0

    def inspector(self) -> Inspector:
        """Cut before the server gets a COMMIT."""

        def when(said: bytes) -> str:
            if not self.is_away or b"COMMIT" not in said:
                return ""
            self.cuts += 1
            return "before"

        return when


@pytest.mark.slow
async def test_an_outage_gives_nothing_up(store: str) -> None:
    """The server takes connections and statements, and nothing is ever committed: each unit is cut off, again and again."""
    async with opened_shop(store, queue="rabbitmq") as shop, listening(Cutting(address(store))) as (proxy, port):
        await shop.send(Place("first"))

        async def tried_often() -> bool:
            return proxy.cuts > 20

        async with shop.endpoint(store=through(shop.store, port)).running():
            await shop.until_rows(1)
            proxy.is_away = True
            await shop.send(Place("good"))
            await shop.until(tried_often)
            assert await shop.dead() == {}
            proxy.is_away = False
            await shop.until_rows(2)
        assert await shop.dead() == {}


@pytest.mark.slow
async def test_messages_that_wait_for_a_lock_hold_no_others_up(shop: Shop) -> None:
    """All that do not need the locked row are handled while it is locked, the others afterwards."""
    waiting = [Place(f"lock {number:02}", "lock") for number in range(10)]
    messages = [message for number in range(10) for message in (*GOOD[number * 4 : number * 4 + 4], waiting[number])]
    await shop.send(*messages)
    async with shop.endpoint().running():
        async with shop.row_locked():
            await shop.until_rows(40)
            assert await shop.rows() == [message.id for message in GOOD[:40]]
        await shop.until_rows(50)
    assert await shop.total() == 10
    assert await shop.dead() == {}


@pytest.mark.slow
async def test_a_handler_that_the_server_finds_idle_is_given_up_and_holds_no_others_up(postgresql_url: str) -> None:
    """Its connection is lost each time. The others run before it has run three times."""
    async with idle_limited(postgresql_url), opened_shop(postgresql_url, queue="rabbitmq") as shop:
        await shop.send(*GOOD[:25], Place("bad", "idle 1.5"), *GOOD[25:])
        async with shop.endpoint().running():
            await shop.until_rows(50)
            await shop.until_dead(1)
        assert await shop.rows() == [message.id for message in GOOD]
        letter = (await shop.dead())["bad"]
        assert letter.reason.startswith("its unit fails with this message and is committed without its handler: ")
        third = [place for place, ran in enumerate(shop.order) if ran == "bad"][2]
        assert {*shop.order[third:]} == {"bad"}
