"""Actions on pages with handlers that run: one effect, whatever operators do at once and wherever a process ends."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import msgspec
import pytest

from onceonly import Context, Endpoint, Off, Retry, Tokens
from onceonly.assembly import open_transport
from onceonly.assembly.deduplication import open_token_issuer, with_token
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.model.token import Token
from onceonly.operations import action_runner, actions
from onceonly.operations.actions import ActionParts
from onceonly.ports.transport import Topology
from onceonly.sql.store import SqlDeadLetters
from onceonly_dashboard import action_worker, application, dashboard
from onceonly_dashboard.access import ROLES
from onceonly_dashboard.app import Dashboard
from tests.dashboard.serving import letter, store
from tests.dashboard.test_actions import JSON, Shop
from tests.dashboard.test_gate import SAME, named, open_client

T = TypeVar("T")


@dataclass
class PlaceOrder:
    """A command. A negative total is rejected while the shop is strict."""

    order_id: str
    total: int


@dataclass
class Bill:
    """What the shop sends for each order of more than 1,000."""

    order_id: str


class Running(Shop):
    """A dashboard of an endpoint that runs, and what its handler did."""

    totals: list[int]
    handled: Counter[str]
    strict: bool = True
    endpoint: Endpoint

    async def order(self, name: str, total: int, token: str = "") -> Message:
        """Send an order."""
        body = f'{{"order_id": "{name}", "total": {total}}}'.encode()
        message = Message(id=name, source="web", type="PlaceOrder", body=body, extensions=(("token", token),) if token else ())
        async with open_transport(self.url, "shop") as transport:
            assert await transport.send([Send(message=message, to="shop")]) == (Answer.TAKEN,)
        return message

    async def letters(self, count: int) -> list[dict[str, Any]]:
        """Wait for this number of letters."""
        found = await until(partial(self.page, "/dead/g/all?endpoint=shop"), lambda page: len(page["letters"]) == count)
        letters: list[dict[str, Any]] = found["letters"]
        return letters

    async def outcomes(self, position: int) -> list[str]:
        """Wait until an action has ended and no message of it is waiting."""
        found = await until(
            partial(self.page, f"/actions/shop/{position}"),
            lambda page: (
                page["action"]["state"] != "running"
                and not any(item["outcome"] in {"waiting", "planned"} for item in page["items"])
            ),
        )
        return [item["outcome"] for item in found["items"]]


async def until(read: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> T:
    """Read until it is so."""
    async with asyncio.timeout(60):
        while not is_so(found := await read()):  # noqa: ASYNC110 - a database has no event
            await asyncio.sleep(0.02)
        return found


@pytest.fixture
def opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Open a dashboard of a running endpoint. Retried messages wait for 0.3 s, and no time passes while they are sent."""
    monkeypatch.setattr(action_worker, "ActionParts", partial(ActionParts, head_start=0.3))
    monkeypatch.setattr(actions, "monotonic", lambda: 0.0)

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Running]:
        transport = f"memory://{uuid4()}"
        store_url = f"sqlite:///{tmp_path}/shop.db"
        values = {
            "store": store_url,
            "transport": transport,
            "retry": Retry(immediate=0, delayed=0),
            "unknown_types_wait": 0,
            **settings,
        }
        shop = Endpoint("shop", **values)
        async with AsyncExitStack() as stack:
            app = dashboard(shop, auth=application(named), roles={"ana": list(ROLES)})
            assert isinstance(app, Dashboard)
            client: httpx.AsyncClient

            @shop.handler
            async def place(order: PlaceOrder, context: Context) -> None:
                if running.strict and order.total < 0:
                    raise ValueError(f"total {order.total} is below zero")
                running.handled[order.order_id] += 1
                running.totals.append(order.total)
                if order.total > 1000:
                    context.send(Bill(order.order_id), to="billing")

            await stack.enter_async_context(shop.running())
            client = await stack.enter_async_context(open_client(app, headers={"x-user": "ana", **SAME}))
            running = Running(app, client, transport)
            running.totals, running.handled, running.endpoint = [], Counter(), shop
            yield running

    return opened


async def edited(shop: Running, key: str, body: str) -> int:
    """Edit a letter on its page; gives the number of the action."""
    fields = await shop.form(f"/act/edit?endpoint=shop&key={key}")
    assert (await shop.client.post("/act/edit", data=fields | {"body": body, "step": "review"})).status_code == 200
    response = await shop.client.post("/act/edit", data=fields | {"body": body, "step": "send"})
    assert response.status_code == 303, response.text
    return int(response.headers["location"].rpartition("/")[2])


async def test_a_letter_fixed_on_its_page_is_handled_once(opening: Any) -> None:
    """One effect, one claim with the new fingerprint. The late old body is a payload mismatch that names the edit."""
    async with opening() as shop:
        old = await shop.order("A-1", -30)
        (letter,) = await shop.letters(1)
        fixed = '{"order_id": "A-1", "total": 30}'
        position = await edited(shop, letter["key"], fixed)
        assert await shop.outcomes(position) == ["handled"]
        assert shop.totals == [30]
        (found,) = (await shop.page("/find?source=web&id=A-1"))["answers"]
        new = Message(id="A-1", source="web", type="PlaceOrder", body=fixed.encode())
        assert (found["found"], found["fingerprint"], found["letters"]) == ("handled", new.fingerprint.hex(), [])
        assert new.fingerprint != old.fingerprint
        await shop.order("A-1", -30)
        (late,) = await shop.letters(1)
        data = await shop.page(f"/dead/{late['key']}")
        assert data["claim"].endswith("A retry is a payload mismatch.")
        assert (data["edited"]["actor"], data["edited"]["position"]) == ("ana", position)
        assert f"edited by ana, action {position}" in (await shop.client.get(f"/dead/{late['key']}")).text
        assert shop.totals == [30]


async def test_a_letter_with_a_wrong_type_is_handled_once(opening: Any) -> None:
    """The type is edited. Id, source and time stay, so a late copy is not handled, whichever type it has."""
    async with opening() as shop:
        wrong = Message(id="A-1", source="web", type="PlaceOrdr", body=b'{"order_id": "A-1", "total": 30}')
        async with open_transport(shop.url, "shop") as transport:
            await transport.send([Send(message=wrong, to="shop")])
            (letter,) = await shop.letters(1)
            fields = await shop.form(f"/act/edit?endpoint=shop&key={letter['key']}")
            fields |= {"body": wrong.body.decode(), "message_type": "PlaceOrder"}
            response = await shop.client.post("/act/edit", data=fields | {"step": "send"})
            assert response.status_code == 303, response.text
            assert await shop.outcomes(1) == ["handled"]
            late = [wrong, msgspec.structs.replace(wrong, type="PlaceOrder")]
            await transport.send([Send(message=each, to="shop") for each in late])
        await shop.order("A-2", 1)
        await until(lambda: asyncio.sleep(0, shop.handled["A-2"]), bool)
        assert shop.handled == {"A-1": 1, "A-2": 1}


async def test_an_unchanged_save_keeps_the_fingerprint(opening: Any) -> None:
    """It is a retry: the copy with the old body is a duplicate, and not a mismatch."""
    async with opening() as shop:
        await shop.order("A-1", -30)
        (letter,) = await shop.letters(1)
        shop.strict = False
        position = await edited(shop, letter["key"], '{"order_id": "A-1", "total": -30}')
        assert await shop.outcomes(position) == ["handled"]
        await shop.order("A-1", -30)
        await shop.order("A-2", 1)
        await until(lambda: asyncio.sleep(0, shop.handled["A-2"]), bool)
        assert shop.handled == {"A-1": 1, "A-2": 1}
        await shop.letters(0)


async def test_a_retry_in_two_tabs_has_one_effect(opening: Any) -> None:
    """Both forms were opened before either was sent."""
    async with opening() as shop:
        await shop.order("A-1", -1)
        (letter,) = await shop.letters(1)
        shop.strict = False
        tabs = [await shop.form(f"/act/retry?endpoint=shop&key={letter['key']}") for _ in range(2)]
        responses = await asyncio.gather(*(shop.client.post("/act/retry", data=fields) for fields in tabs))
        assert {response.status_code for response in responses} <= {303, 404}
        sent = [each.headers["location"] for each in responses if each.status_code == 303]
        outcomes = [await shop.outcomes(int(each.rpartition("/")[2])) for each in sent]
        assert ["handled"] in outcomes
        assert all(each in (["handled"], ["kept"]) for each in outcomes)
        await shop.order("A-2", 1)
        await until(lambda: asyncio.sleep(0, shop.handled["A-2"]), bool)
        assert shop.handled == {"A-1": 1, "A-2": 1}


@pytest.mark.parametrize("first", ["retry", "edit"])
async def test_a_retry_raced_with_an_edit_has_one_effect(opening: Any, first: str) -> None:
    """Whichever body commits first wins; the other one is a letter, or was not sent."""
    async with opening() as shop:
        await shop.order("A-1", -30)
        (letter,) = await shop.letters(1)
        shop.strict = False
        retry = await shop.form(f"/act/retry?endpoint=shop&key={letter['key']}")
        edit = await shop.form(f"/act/edit?endpoint=shop&key={letter['key']}")
        edit |= {"body": '{"order_id": "A-1", "total": 30}', "step": "send"}
        calls = [shop.client.post("/act/retry", data=retry), shop.client.post("/act/edit", data=edit)]
        responses = await asyncio.gather(*(calls if first == "retry" else calls[::-1]))
        sent = [each.headers["location"] for each in responses if each.status_code == 303]
        assert sent
        outcomes = [outcome for each in sent for outcome in await shop.outcomes(int(each.rpartition("/")[2]))]
        assert outcomes.count("handled") == 1
        assert shop.handled == {"A-1": 1}


async def test_a_process_that_ends_between_sending_and_deleting_has_one_effect(
    opening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another dashboard continues after the lease, and repeats what was planned. There is one item for the letter."""
    monkeypatch.setattr(action_runner, "LEASE_MS", 50)
    reached = asyncio.Event()
    remove = SqlDeadLetters.remove

    async def ends_here(_: SqlDeadLetters, __: Sequence[str]) -> int:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError("the process has ended")

    async with opening() as shop:
        await shop.order("A-1", -1)
        (letter,) = await shop.letters(1)
        shop.strict = False
        fields = await shop.form(f"/act/retry?endpoint=shop&key={letter['key']}")
        monkeypatch.setattr(SqlDeadLetters, "remove", ends_here)
        assert (await shop.client.post("/act/retry", data=fields)).status_code == 303
        await reached.wait()
        await shop.app.services.action_worker.stop()
        monkeypatch.setattr(SqlDeadLetters, "remove", remove)
        other = dashboard(shop.endpoint, auth=application(named), roles={"ana": list(ROLES)})
        assert isinstance(other, Dashboard)
        probes = other.services.endpoints["shop"]

        async def state() -> str:
            await other.services.action_worker.resume(probes)
            await other.services.action_worker.settled()
            return str((await shop.page("/actions/shop/1"))["action"]["state"])

        await until(state, lambda found: found != "running")
        assert await shop.outcomes(1) == ["handled"]
        await shop.letters(0)
        assert shop.handled == {"A-1": 1}


async def test_finish_only_sends_messages_and_runs_no_handler(opening: Any) -> None:
    """The broker refused a message after the commit. The counter of the handler stays, the message leaves."""
    async with opening() as shop:
        await shop.order("A-1", 2000)
        (letter,) = await shop.letters(1)
        assert (letter["finish_only"], shop.handled) == (True, {"A-1": 1})
        assert "finish only" in (await shop.page(f"/act/edit?endpoint=shop&key={letter['key']}"))["why_not"]
        async with open_transport(shop.url, "billing") as transport:
            await transport.declare([Topology(endpoint="billing")])
            fields = await shop.form(f"/act/retry?endpoint=shop&key={letter['key']}")
            assert (await shop.client.post("/act/retry", data=fields)).status_code == 303
            (bill,) = await transport.receive(10, 30.0)
        assert dict(bill.headers)["ce-type"] == "Bill"
        assert await shop.outcomes(1) == ["handled"]
        await shop.letters(0)
        assert shop.handled == {"A-1": 1}


async def test_a_probe_with_a_failing_handler_sends_three(opening: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 10; the page proposes it. The others stay."""
    monkeypatch.setattr(action_worker, "ActionParts", ActionParts)  # these fail again, so they have to wait as long as usual
    monkeypatch.setattr(actions, "monotonic", monotonic)
    async with opening() as shop:
        for number in range(12):
            await shop.order(f"A-{number}", -1)
        await shop.letters(12)
        before = {each["key"]: each["at"] for each in await shop.letters(12)}
        fields = await shop.form("/act/retry?endpoint=shop&group=all")
        response = await shop.client.post("/act/retry", data=fields | {"probe": "3", "rate": "0"})
        assert response.status_code == 303
        await shop.app.services.action_worker.settled()
        action = (await shop.page("/actions/shop/1"))["action"]
        assert (action["state"], action["done"], action["total"]) == ("stopped", 3, 12)
        after = {each["key"]: each["at"] for each in await shop.letters(12)}
        assert sum(after[key] > at for key, at in before.items()) == 3


@pytest.mark.parametrize("deduplication", [None, Tokens(), Off()], ids=["history", "tokens", "off"])
async def test_a_deleted_letter_is_restored(opening: Any, deduplication: Any) -> None:
    """With its key and its time. A token is withdrawn, so a late copy is dropped, and comes back: then a retry is handled."""
    settings = {} if deduplication is None else {"deduplication": deduplication}
    async with opening(**settings) as shop:
        token = ""
        if isinstance(deduplication, Tokens):
            token = with_token(Message(id="A-1", source="web", type="PlaceOrder", body=b"")).token
            async with open_token_issuer(shop.endpoint.settings) as issuer:
                await issuer.add([Token(token, "shop")])
        await shop.order("A-1", -1, token)
        (before,) = await shop.letters(1)
        await shop.send("/act/delete", await shop.form(f"/act/delete?endpoint=shop&key={before['key']}"))
        (item,) = (await shop.page("/actions/shop/1"))["items"]
        assert (item["outcome"], item["detail"]) == ("deleted", "token withdrawn" if token else "")
        await shop.letters(0)
        shop.strict = False
        if token:
            await shop.order("A-1", -1, token)
            fresh = with_token(Message(id="A-2", source="web", type="PlaceOrder", body=b"")).token
            async with open_token_issuer(shop.endpoint.settings) as issuer:
                await issuer.add([Token(fresh, "shop")])
            await shop.order("A-2", 1, fresh)
            await until(lambda: asyncio.sleep(0, shop.handled["A-2"]), bool)
            assert shop.handled == {"A-2": 1}
        assert (await shop.send("/actions/shop/1/restore", await shop.form("/actions/shop/1"))).status_code == 303
        (after,) = await shop.letters(1)
        assert (after["key"], after["at"]) == (before["key"], before["at"])
        await shop.send("/act/retry", await shop.form(f"/act/retry?endpoint=shop&key={after['key']}"))
        await until(lambda: asyncio.sleep(0, shop.handled["A-1"]), bool)
        assert await shop.outcomes(3) == ["unknown" if isinstance(deduplication, Off) else "handled"]
        assert shop.handled["A-1"] == 1
        assert [each["state"] for each in (await shop.page("/actions"))["actions"]] == ["done"] * 3


async def test_a_payload_mismatch_is_sent_as_new_on_its_page(opening: Any) -> None:
    """Once: both bodies are handled then, each under its id."""
    async with opening() as shop:
        await shop.order("A-1", 1)
        await until(lambda: asyncio.sleep(0, shop.handled["A-1"]), bool)
        await shop.order("A-1", 2)
        (letter,) = await shop.letters(1)
        permitted = dashboard(shop.endpoint, auth=application(named), roles={"ana": list(ROLES)}, send_as_new=True)
        assert isinstance(permitted, Dashboard)
        async with open_client(permitted, headers={"x-user": "ana", **SAME}) as client:
            both = Running(permitted, client, shop.url)
            assert "Send as new" in (await client.get(f"/dead/{letter['key']}")).text
            fields = await both.form(f"/act/new?endpoint=shop&key={letter['key']}")
            assert (await both.send("/act/new", fields)).status_code == 303
            assert (await client.post("/act/new", data=fields, headers=JSON)).status_code in {404, 409}
            assert await both.outcomes(1) == ["handled"]
        assert sorted(shop.totals) == [1, 2]
        await shop.letters(0)


async def test_the_page_of_claims_names_the_commands_for_maintenance(opening: Any) -> None:
    """As the command line named the endpoint, so that they can be copied. The dashboard runs neither of them."""
    async with opening() as shop:
        await shop.order("A-1", 1)
        await until(lambda: asyncio.sleep(0, shop.handled["A-1"]), bool)
        shop.app.name_targets(["web.shop:endpoint"])
        page = (await shop.client.get("/claims")).text
        assert all(f"<code>onceonly {command} web.shop:endpoint" in page for command in ("janitor", "plan"))


async def test_a_bulk_retry_is_checked_before_its_confirmation(opening: Any) -> None:
    """How many were handled, have another body or no identity, by claims; the handler runs for the others."""
    async with opening() as shop:
        await shop.order("A-1", 2000)  # handled, its message is refused
        await shop.order("A-2", 2)
        await until(lambda: asyncio.sleep(0, shop.handled["A-2"]), bool)
        for name, total in (("A-2", 3), ("A-3", -3), ("A-4", -4)):
            await shop.order(name, total)
        await shop.letters(4)
        await store(shop.endpoint, [letter(message=None, history=())])
        page = await shop.page("/act/retry?endpoint=shop&group=all")
        assert page["check"] == {"checked": 5, "finished": 1, "mismatched": 1, "kept": 1, "unknown": 0}
        text = (await shop.client.get("/act/retry?endpoint=shop&group=all")).text
        assert "For 2 the handler runs." in text
