"""Actions on pages: confirmed once, by the role that they need, stored with who did it, and with one effect."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from onceonly import Endpoint
from onceonly.assembly import open_transport
from onceonly.cli.dead import run_actions
from onceonly.cli.operator_ports import open_operator_ports
from onceonly.cli.targets import target_of
from onceonly.model.action import Action, ActionKind, ActionScope, ActionState
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import Message
from onceonly.operations import action_runner
from onceonly.operations.action_runner import ActionRunner
from onceonly.operations.actions import Operator, confirm, new_action
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE
from onceonly.sql.store import SqlDeadLetters
from onceonly_dashboard import application, dashboard
from onceonly_dashboard.access import ROLES
from onceonly_dashboard.action_worker import open_parts
from onceonly_dashboard.app import Dashboard
from onceonly_dashboard.auditor import LINES, USER_ROWS, Allowance, RequestAuditor
from onceonly_dashboard.gate import Refusal
from onceonly_dashboard.views.edit import diff
from tests.dashboard.serving import PlaceOrder, letter, store
from tests.dashboard.test_gate import SAME, named, open_client

JSON = {"accept": "application/json"}


class Shop:
    """A dashboard of an endpoint in a database, as a browser with a user sees it."""

    def __init__(self, app: Dashboard, client: httpx.AsyncClient, url: str) -> None:
        self.app = app
        self.client = client
        self.url = url

    async def page(self, path: str) -> dict[str, Any]:
        """Return the data of a page."""
        response = await self.client.get(path, headers=JSON)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def form(self, path: str) -> dict[str, str]:
        """Return the hidden fields of the last form of a page."""
        page = (await self.client.get(path)).text
        fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
        return dict(fields) | {"reason": "because"}

    async def send(self, path: str, fields: dict[str, str]) -> httpx.Response:
        """Send a form and wait until the action has ended."""
        response = await self.client.post(path, data=fields)
        await self.app.services.action_worker.settled()
        return response

    async def states(self) -> list[str]:
        """Return the states of the actions, the newest first."""
        return [each["state"] for each in (await self.page("/actions"))["actions"]]

    async def queue(self) -> int:
        """Count the messages in the queue that are due or delayed."""
        async with open_transport(self.url, "shop") as transport:
            depth = await transport.depth("shop")
            return depth.waiting + depth.delayed


@asynccontextmanager
async def opened(folder: Path, *letters: DeadLetter, **options: Any) -> AsyncIterator[Shop]:
    """Open an endpoint in a database with these dead letters."""
    url = f"sqlite:///{folder}/shop.db"
    shop = Endpoint("shop", store=url, transport=url)

    async def place(_order: PlaceOrder) -> None:
        pass

    async def keep(_blob: bytes) -> None:
        pass

    shop.handler(place)
    shop.handler(type="Blob")(keep)
    await store(shop, letters)
    async with open_transport(url, "shop") as transport:
        await transport.declare([Topology(endpoint="shop")])
    app = dashboard(shop, **{"auth": application(named), "roles": {"ana": list(ROLES)}, **options})
    assert isinstance(app, Dashboard)
    async with open_client(app, headers={"x-user": "ana", **SAME}) as client:
        yield Shop(app, client, url)


async def test_a_retried_letter_is_sent_once_and_audited(tmp_path: Path) -> None:
    """The message is in the queue, the letter is gone, and the action says who, when and why."""
    async with opened(tmp_path, letter(), letter(number=2)) as shop:
        fields = await shop.form(f"/act/retry?endpoint=shop&key={letter().key}")
        response = await shop.send("/act/retry", fields)
        assert (response.status_code, response.headers["location"]) == (303, "/actions/shop/1")
        assert await shop.queue() == 1
        assert (await shop.page("/dead"))["endpoints"][0]["total"] == 1
        found = await shop.page("/actions/shop/1")
        action = found["action"]
        assert (action["actor"], action["method"], action["action"], action["reason"]) == (
            "ana",
            "application",
            "retry",
            "because",
        )
        assert (action["state"], action["done"], action["kept"]) == ("done", 1, 0)
        assert [item["outcome"] for item in found["items"]] == ["waiting"]
        again = await shop.send("/act/retry", fields)
        assert again.status_code in {404, 409}
        assert await shop.queue() == 1


async def test_a_form_is_used_once(tmp_path: Path) -> None:
    """A second click on the same button does nothing, also while the letter is there again."""
    async with opened(tmp_path, letter()) as shop:
        fields = await shop.form(f"/act/delete?endpoint=shop&key={letter().key}")
        assert (await shop.send("/act/delete", fields)).status_code == 303
        await store(next(iter(shop.app.services.endpoints.values())).endpoint, [letter()])
        assert (await shop.send("/act/delete", fields)).status_code == 409
        assert await shop.states() == ["refused", "done"]


async def test_a_form_is_used_once_by_all_processes(tmp_path: Path) -> None:
    """Two dashboards with one secret: the second click goes to the other one."""
    secret = "a secret of many characters"  # noqa: S105 - of tests
    async with opened(tmp_path, letter(), secret=secret) as one, opened(tmp_path, secret=secret) as other:
        path = f"/act/delete?endpoint=shop&key={letter().key}"
        fields, fresh = await one.form(path), await one.form(path)
        assert (await other.send("/act/delete", fields)).status_code == 303
        await store(next(iter(one.app.services.endpoints.values())).endpoint, [letter()])
        refused = await one.send("/act/delete", fields)
        assert (refused.status_code, "sent before" in refused.text) == (409, True)
        assert (await one.send("/act/delete", fresh)).status_code == 303


async def test_a_confirmation_is_of_what_was_shown(tmp_path: Path) -> None:
    """A letter that came meanwhile is not part of it: the form is refused, and nothing happens."""
    async with opened(tmp_path, letter()) as shop:
        fields = await shop.form("/act/retry?endpoint=shop&group=all")
        await store(next(iter(shop.app.services.endpoints.values())).endpoint, [letter(number=2)])
        response = await shop.send("/act/retry", fields)
        assert response.status_code == 409
        assert "2 dead letters now" in response.text
        assert await shop.states() == ["refused"]
        assert await shop.queue() == 0


async def test_all_letters_of_a_group_are_retried(tmp_path: Path) -> None:
    """And no others."""
    letters = [letter(number=number) for number in range(1, 6)]
    other = letter(number=9, reason="TimeoutError: no answer", history=())
    async with opened(tmp_path, *letters, other) as shop:
        groups = (await shop.page("/dead"))["endpoints"][0]["groups"]
        fields = await shop.form(f"/act/retry?endpoint=shop&group={groups[0]['key']}")
        assert (await shop.send("/act/retry", fields | {"rate": "0"})).status_code == 303
        assert await shop.queue() == 5
        assert [group["count"] for group in (await shop.page("/dead"))["endpoints"][0]["groups"]] == [1]


async def test_deleted_letters_can_be_restored(tmp_path: Path) -> None:
    """With their keys and times."""
    async with opened(tmp_path, letter()) as shop:
        fields = await shop.form(f"/act/delete?endpoint=shop&key={letter().key}")
        await shop.send("/act/delete", fields)
        assert (await shop.client.get(f"/dead/{letter().key}")).status_code == 404
        back = await shop.form("/actions/shop/1")
        assert (await shop.send("/actions/shop/1/restore", back)).status_code == 303
        found = await shop.page(f"/dead/{letter().key}")
        assert found["at"] == letter().at


async def test_many_letters_are_deleted_only_with_their_number_typed(tmp_path: Path) -> None:
    """Above 100."""
    async with opened(tmp_path, *(letter(number=number) for number in range(1, 102))) as shop:
        fields = await shop.form("/act/delete?endpoint=shop&group=all")
        assert (await shop.send("/act/delete", fields)).status_code == 400
        assert (await shop.page("/dead"))["endpoints"][0]["total"] == 101
        assert (await shop.send("/act/delete", fields | {"typed": "101"})).status_code == 303
        assert (await shop.page("/dead"))["endpoints"][0]["total"] == 0


async def test_retry_anyway_is_for_one_letter_and_typed(tmp_path: Path) -> None:
    """It may handle a message twice."""
    async with opened(tmp_path, letter()) as shop:
        assert (await shop.client.get("/act/force?endpoint=shop&group=all")).status_code == 400
        fields = await shop.form(f"/act/force?endpoint=shop&key={letter().key}")
        assert (await shop.send("/act/force", fields)).status_code == 400
        assert (await shop.send("/act/force", fields | {"typed": "HANDLED TWICE"})).status_code == 303


async def test_an_edit_is_reviewed_and_sent_under_the_same_id(tmp_path: Path) -> None:
    """The difference is shown first; the reason is required; the body of the form decides."""
    async with opened(tmp_path, letter()) as shop:
        path = f"/act/edit?endpoint=shop&key={letter().key}"
        fields = await shop.form(path) | {"body": '{"order_id": "A-1", "total": 30}'}
        review = await shop.send("/act/edit", fields | {"step": "review"})
        assert review.status_code == 200
        assert "<del>" in review.text
        assert await shop.queue() == 0
        assert (await shop.send("/act/edit", fields | {"step": "send", "reason": ""})).status_code == 400
        assert (await shop.send("/act/edit", fields | {"step": "send", "body": '{"total": "x"}'})).status_code == 400
        assert (await shop.send("/act/edit", fields | {"step": "send"})).status_code == 303
        async with open_transport(shop.url, "shop") as transport:
            (delivery,) = await transport.receive(10, 5.0)
        assert delivery.body == b'{"order_id": "A-1", "total": 30}'
        assert dict(delivery.headers)["ce-id"] == "A-1"


def rich(**changes: Any) -> DeadLetter:
    """Make a letter with headers, of which one is a secret and one cannot be written on a line."""
    headers = (("tenant", "blue"), ("authorization", "Bearer hunter2"), ("odd", " a "), ("tenant", "red"))
    values = {"body": b'{"order_id": "A-1"}', "subject": "orders/A-1", "headers": headers, **changes}
    message = Message(id="A-1", source="web", type="PlaceOrdr", extensions=(("onceonlyclass", "7"),), **values)
    return letter(message=message, body=message.body, headers=headers)


async def delivered(shop: Shop) -> tuple[list[tuple[str, str]], bytes]:
    """Return headers and body of the one message that was sent."""
    async with open_transport(shop.url, "shop") as transport:
        (delivery,) = await transport.receive(10, 5.0)
    return list(delivery.headers), delivery.body


async def test_an_edit_changes_attributes_and_headers(tmp_path: Path) -> None:
    """Type, subject, content type, and headers. The difference is shown, secrets and what no form keeps stay as they are."""
    async with opened(tmp_path, rich()) as shop:
        path = f"/act/edit?endpoint=shop&key={rich().key}"
        page = (await shop.client.get(path)).text
        assert "hunter2" not in page
        assert "tenant: blue\ntenant: red</textarea>" in page
        fields = await shop.form(path) | {"body": '{"order_id": "A-1"}'}
        changes = {"message_type": "PlaceOrder", "subject": "", "headers": "tenant: green\r\n\r\nlocale:  de \r\n"}
        review = await shop.send("/act/edit", fields | changes | {"step": "review"})
        assert review.status_code == 200, review.text
        for line in ("type: PlaceOrdr", "subject: orders/A-1", "tenant: blue", "tenant: red"):
            assert f'<del><span class="hidden">removed: </span>{line}</del>' in review.text
        assert await shop.queue() == 0
        assert (await shop.send("/act/edit", fields | changes | {"step": "send"})).status_code == 303
        assert (await shop.page("/actions/shop/1"))["items"][0]["detail"] == "changed: type, subject, headers"
        headers, body = await delivered(shop)
        assert body == b'{"order_id": "A-1"}'
        named = dict(headers)
        assert (named["ce-id"], named["ce-source"], named["ce-type"], named["ce-onceonlyclass"]) == (
            "A-1",
            "web",
            "PlaceOrder",
            "7",
        )
        assert "ce-subject" not in named
        own = [pair for pair in headers if not pair[0].startswith(("ce-", "content-type"))]
        assert own == [("authorization", "Bearer hunter2"), ("odd", " a "), ("tenant", "green"), ("locale", "de")]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"message_type": ""}, "no message type"),
        ({"message_type": "Nobody"}, "could not read"),
        ({"datacontenttype": "application/cloudevents+json"}, "locked"),
        ({"subject": "x" * 2000}, "limit is 1,024"),
        ({"headers": "tenant"}, "not a header"),
        ({"headers": "ce-id: A-2"}, "reserved"),
        ({"headers": "ce_source: B"}, "reserved"),
        ({"headers": "onceonlyclass: 8"}, "reserved"),
        ({"headers": "Authorization: none"}, "hidden"),
        ({"headers": "tenant: " + "x" * 9000}, "limit is 8,192"),
        ({"headers": "tenant: a\x00b"}, "control characters"),
    ],
)
async def test_an_edit_never_changes_the_identity(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    """Nor what is hidden, and what no broker carries is refused, too."""
    async with opened(tmp_path, rich()) as shop:
        fields = await shop.form(f"/act/edit?endpoint=shop&key={rich().key}")
        fields |= {"body": '{"order_id": "A-1"}', "message_type": "PlaceOrder"}
        response = await shop.send("/act/edit", fields | changes | {"step": "send"})
        assert (response.status_code, problem in response.text) == (400, True), response.text
        assert await shop.queue() == 0
        assert await shop.states() == ["refused"]


async def test_what_redact_hides_is_not_in_the_form_and_stays(tmp_path: Path) -> None:
    """The subject and a header: also when the form sends them."""

    def redact(message: Message) -> Message:
        headers = tuple((name, "***" if name == "tenant" else value) for name, value in message.headers)
        return msgspec.structs.replace(message, subject="", headers=headers)

    async with opened(tmp_path, rich(), redact=redact) as shop:
        path = f"/act/edit?endpoint=shop&key={rich().key}"
        page = (await shop.client.get(path)).text
        assert "Content type" in page
        assert not any(text in page for text in ("blue", "red</", "orders/A-1"))
        fields = await shop.form(path) | {"body": '{"order_id": "A-1"}', "message_type": "PlaceOrder", "subject": "mine"}
        assert (await shop.send("/act/edit", fields | {"headers": "tenant: x", "step": "send"})).status_code == 400
        assert (await shop.send("/act/edit", fields | {"headers": "locale: de", "step": "send"})).status_code == 303
        headers, _ = await delivered(shop)
        assert dict(headers)["ce-subject"] == "orders/A-1"
        assert [value for name, value in headers if name == "tenant"] == ["blue", "red"]
        assert dict(headers)["locale"] == "de"


async def test_an_event_in_structured_mode_is_edited_as_its_data(tmp_path: Path) -> None:
    """It came as one document with id, source and data. A retry sends the data as the body, and so does an edit."""
    document = b'{"specversion":"1.0","id":"A-1","source":"web","type":"PlaceOrder","data":{"order_id":"A-1","total":-30}}'
    message = Message(id="A-1", source="web", type="PlaceOrder", body=b'{"order_id":"A-1","total":-30}')
    structured = letter(message=message, body=document, headers=(("content-type", "application/cloudevents+json"),))
    async with opened(tmp_path, structured) as shop:
        path = f"/act/edit?endpoint=shop&key={structured.key}"
        assert "specversion" not in (await shop.client.get(path)).text
        fields = await shop.form(path) | {"body": '{"order_id":"A-1","total":30}', "step": "send"}
        assert (await shop.send("/act/edit", fields)).status_code == 303
        _, body = await delivered(shop)
        assert body == b'{"order_id":"A-1","total":30}'


def hidden(message: Message) -> Message:
    """Return the message that may be shown: without its total."""
    return msgspec.structs.replace(message, body=b'{"order_id": "A-1"}')


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"redact": hidden}, id="a part of the body is hidden"),
        pytest.param({"roles": {"ana": ["view", "edit"]}}, id="the user may not see bodies"),
    ],
)
async def test_the_form_shows_no_body_that_is_hidden_elsewhere(tmp_path: Path, options: dict[str, Any]) -> None:
    """Neither to read nor to send."""
    async with opened(tmp_path, letter(), **options) as shop:
        path = f"/act/edit?endpoint=shop&key={letter().key}"
        assert (await shop.page(path))["why_not"]
        assert "total" not in (await shop.client.get(path)).text
        fields = {"endpoint": "shop", "key": letter().key, "body": "{}", "reason": "because", "step": "send"}
        await shop.send("/act/edit", fields)
        assert await shop.queue() == 0


@pytest.mark.parametrize("body", [b"a\r\nb\nc", b"\xff", b"\x1b[31m", "\u202e".encode()])
async def test_a_body_that_a_form_cannot_keep_is_not_edited(tmp_path: Path, body: bytes) -> None:
    """It says why."""
    async with opened(tmp_path, letter(body=body)) as shop:
        found = await shop.page(f"/act/edit?endpoint=shop&key={letter(body=body).key}")
        assert "onceonly dead edit" in found["why_not"]


async def test_a_letter_of_another_endpoint_is_not_touched(tmp_path: Path) -> None:
    """Although its key is known."""
    foreign = letter("elsewhere")
    async with opened(tmp_path, foreign) as shop:
        for path in ("/act/retry", "/act/delete", "/act/edit", "/act/force"):
            assert (await shop.client.get(f"{path}?endpoint=shop&key={foreign.key}")).status_code == 404


async def test_actions_that_another_process_left_are_continued(tmp_path: Path) -> None:
    """Its lease is over, so this process leads."""
    async with opened(tmp_path, letter()) as shop:
        probes = shop.app.services.endpoints["shop"]
        async with open_parts(probes) as parts:
            await confirm(parts, new_action(Operator("bob", "cli"), ActionKind.DELETE, "shop"))
        await shop.app.services.action_worker.resume(probes)
        await shop.app.services.action_worker.settled()
        assert (await shop.page("/actions/shop/1"))["action"]["state"] == "done"


async def test_an_action_is_stopped_by_its_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says who stopped it. Its letters stay."""
    caplog.set_level(logging.INFO, "onceonly.audit")
    async with opened(tmp_path, letter()) as shop:
        async with open_parts(shop.app.services.endpoints["shop"]) as parts:
            await confirm(parts, new_action(Operator("bob", "cli"), ActionKind.DELETE, "shop"))
        fields = await shop.form("/actions/shop/1")
        running = (await shop.client.get("/actions/shop/1")).text
        region, form = running.index('<div id="action" data-live>'), running.index("/stop")
        inside = running[region:form]
        assert inside.count("<div") > inside.count("</div>"), "the form of a finished action stays on a page that refreshes"
        assert (await shop.send("/actions/shop/1/stop", fields)).status_code == 303
        assert "Stop</button>" not in (await shop.client.get("/actions/shop/1")).text
        assert await shop.states() == ["stopped"]
        (line,) = [record for record in caplog.records if "operator action stopped" in record.message]
        assert vars(line)["actor"] == "ana"
        assert (await shop.page("/dead"))["endpoints"][0]["total"] == 1


@pytest.mark.parametrize("scope", ["by key", "all"])
async def test_an_action_of_a_command_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str) -> None:
    """The command named the database by its URL, and its process ended. Each endpoint's dashboard continues its own."""
    monkeypatch.setattr(action_runner, "LEASE_MS", 50)
    reached, remove, mine = asyncio.Event(), SqlDeadLetters.remove, letter(number=2).key

    async def ends_here(self: SqlDeadLetters, keys: Sequence[str]) -> int:
        if mine in keys:  # with all letters, the action of the other endpoint ended before
            reached.set()
            await asyncio.Event().wait()
        return await remove(self, keys)

    async with opened(tmp_path, letter("another"), letter(number=2)) as shop, AsyncExitStack() as stack:
        parts = await stack.enter_async_context(open_operator_ports(target_of(shop.url)))
        action = new_action(
            Operator("bob", "cli"), ActionKind.DELETE, scope=ActionScope(keys=(mine,) if scope == "by key" else ())
        )
        monkeypatch.setattr(SqlDeadLetters, "remove", ends_here)
        command = asyncio.create_task(run_actions(ActionRunner(parts), action))
        await reached.wait()
        monkeypatch.setattr(SqlDeadLetters, "remove", remove)
        probes = shop.app.services.endpoints["shop"]
        async with asyncio.timeout(60):
            while (await shop.page("/dead"))["endpoints"][0]["total"]:
                await shop.app.services.action_worker.resume(probes)
                await shop.app.services.action_worker.settled()
        rows = (await shop.page("/actions"))["actions"]
        assert [(row["endpoint"], row["state"], row["done"]) for row in rows] == [("shop", "done", 1)]
        command.cancel()
        await asyncio.wait([command])


async def test_a_refused_action_has_a_row(tmp_path: Path) -> None:
    """A confirmation that is missing, a form that was sent before, a scope that has changed, an edit that cannot be read."""
    async with opened(tmp_path, *(letter(number=number) for number in range(1, 103))) as shop:
        fields = await shop.form("/act/delete?endpoint=shop&group=all")
        await shop.send("/act/delete", fields)
        force = await shop.form(f"/act/force?endpoint=shop&key={letter().key}")
        await shop.send("/act/force", force)
        edit = await shop.form(f"/act/edit?endpoint=shop&key={letter().key}")
        await shop.send("/act/edit", edit | {"step": "send", "body": '{"total": "x"}'})
        await shop.send("/act/edit", edit | {"step": "send", "body": "{}", "reason": ""})
        await shop.send("/act/delete", fields | {"total": "7", "typed": "7"})
        rows = (await shop.page("/actions"))["actions"][::-1]
        assert [(row["actor"], row["state"], row["action"], row["reason"]) for row in rows] == [
            ("ana", "refused", "delete", "Type 102 to confirm."),
            ("ana", "refused", "retry anyway", "Type HANDLED TWICE to confirm."),
            ("ana", "refused", "edit and retry", "The handler could not read the edited message."),
            ("ana", "refused", "edit and retry", "State a reason: it is stored with the edit."),
            ("ana", "refused", "delete", "The selection has changed: there are 102 dead letters now. Open the page again."),
        ]
        assert await shop.queue() == 0


async def test_strangers_cannot_fill_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the gate refuses is a line of the log, also at most 100 in a minute. Rows of one user are at most 20 in an hour."""
    caplog.set_level(logging.INFO, "onceonly.audit")
    async with opened(tmp_path, letter(), roles={"ana": list(ROLES), "bob": ["view"]}) as shop:
        fields = await shop.form(f"/act/force?endpoint=shop&key={letter().key}")
        refusals: list[tuple[dict[str, str], dict[str, str], int]] = [
            (fields, {"x-user": "bob"}, 403),
            (fields | {"token": "x"}, {}, 403),
            (fields, {"sec-fetch-site": "cross-site"}, 403),
            ({f"f{number}": "" for number in range(60)}, {}, 413),
        ]
        for data, headers, status in refusals:
            assert (await shop.client.post("/act/force", data=data, headers=headers)).status_code == status
        lines = [record for record in caplog.records if "operator request refused" in record.message]
        assert [(vars(each)["actor"], vars(each)["path"]) for each in lines] == [
            (user, "/act/force") for user in ("bob", "ana", "ana", "ana")
        ]
        assert await shop.states() == []
        for _ in range(150):
            await shop.client.post("/act/force", data=fields, headers={"sec-fetch-site": "cross-site"})
        lines = [record for record in caplog.records if "operator request refused" in record.message]
        assert len(lines) == LINES
        for _ in range(USER_ROWS + 5):
            assert (await shop.client.post("/act/force", data=fields)).status_code == 400
        assert await shop.states() == ["refused"] * USER_ROWS


async def test_a_read_only_dashboard_logs_what_it_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has no such route, and stores nothing."""
    caplog.set_level(logging.INFO, "onceonly.audit")
    async with opened(tmp_path, letter(), read_only=True) as shop:
        assert (await shop.client.post("/act/delete", data={"endpoint": "shop", "key": letter().key})).status_code == 404
        (line,) = caplog.records
        assert "operator request refused" in line.message
        assert await shop.states() == []


def test_an_allowance_comes_back() -> None:
    """After its time, one by one."""
    allowance = Allowance(2, 1000)
    assert [allowance.permits(now) for now in (0, 500, 900, 1000, 1100, 1500)] == [True, True, False, True, False, True]


async def test_actions_are_counted(tmp_path: Path) -> None:
    """As Prometheus text, behind the gate."""
    async with opened(tmp_path, letter(), letter(number=2), roles={"ana": list(ROLES), "eve": []}) as shop:
        await shop.send("/act/retry", await shop.form(f"/act/retry?endpoint=shop&key={letter().key}"))
        await shop.send("/act/force", await shop.form(f"/act/force?endpoint=shop&key={letter(number=2).key}"))
        text = (await shop.client.get("/metrics")).text
        name = "onceonly_dashboard_actions_total"
        assert f'{name}{{onceonly_action="retry",onceonly_outcome="done"}} 1.0' in text
        assert f'{name}{{onceonly_action="retry anyway",onceonly_outcome="refused"}} 1.0' in text
        assert (await shop.client.get("/metrics", headers={"x-user": "eve"})).status_code == 403
        assert (await shop.client.get("/metrics", headers={"x-user": ""})).status_code == 403


def test_actions_are_counted_in_the_global_meter_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the catalog."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr(metrics, "get_meter", lambda name, **_: provider.get_meter(name))
    auditor = RequestAuditor("basic", LIVE.clock)
    for _ in range(2):
        auditor.refused("ana", "/act/delete", Refusal(HTTPStatus.FORBIDDEN, "no"))
    auditor.ended(Action(actor="ana", method="basic", action=ActionKind.EDIT, state=ActionState.DONE))
    auditor.ended(Action(actor="ana", method="basic", action=ActionKind.EDIT))
    data: Any = reader.get_metrics_data()
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "onceonly.dashboard.actions"
    assert {tuple(point.attributes.values()): point.value for point in metric.data.data_points} == {
        ("delete", "refused"): 2,
        ("edit and retry", "done"): 1,
    }


async def test_views_of_bodies_are_stored_if_asked_for(tmp_path: Path) -> None:
    """Who opened which body, on the page, in the form and as a download; not by those who see no body."""
    roles = {"ana": list(ROLES), "bob": ["view"]}
    async with opened(tmp_path, letter(), audit_views=True, roles=roles) as shop:
        key = letter().key
        for path in (f"/dead/{key}", f"/dead/{key}/body", f"/act/edit?endpoint=shop&key={key}"):
            assert (await shop.client.get(path)).status_code == 200
        assert (await shop.client.get(f"/dead/{key}", headers={"x-user": "bob"})).status_code == 200
        rows = (await shop.page("/actions"))["actions"]
        assert [(row["actor"], row["action"], row["state"]) for row in rows] == [("ana", "open body", "done")] * 3
    async with opened(tmp_path) as shop:
        await shop.client.get(f"/dead/{letter().key}")
        assert len(await shop.states()) == 3


async def test_a_letter_without_identity_is_sent_as_new_where_that_is_permitted(tmp_path: Path) -> None:
    """The page asks for the type. By default there is no such page."""
    nameless = letter(message=None, history=())
    path = f"/act/new?endpoint=shop&key={nameless.key}"
    async with opened(tmp_path, nameless, letter(number=2)) as shop:
        assert (await shop.client.get(path)).status_code == 404
        assert "Send as new" not in (await shop.client.get(f"/dead/{nameless.key}")).text
    async with opened(tmp_path, send_as_new=True) as shop:
        assert "Send as new" in (await shop.client.get(f"/dead/{nameless.key}")).text
        assert "Send as new" not in (await shop.client.get(f"/dead/{letter(number=2).key}")).text
        kind = "PlaceOrder"
        refused = await shop.send("/act/new", await shop.form(path) | {"kind": "Nobody"})
        assert (refused.status_code, await shop.states()) == (409, ["refused"])
        sent = await shop.send("/act/new", await shop.form(path) | {"kind": kind})
        assert (sent.status_code, await shop.queue()) == (303, 1)
        other = await shop.send("/act/new", await shop.form(path.replace(nameless.key, letter(number=2).key)))
        assert (other.status_code, "not a payload mismatch" in other.text, await shop.queue()) == (409, True, 1)


def test_a_difference_has_signs_and_context() -> None:
    """Three lines around each change."""
    before = "\n".join(str(number) for number in range(20))
    after = before.replace("\n10\n", "\nten\n")
    assert [line.sign + line.text for line in diff(before, after)] == ["7", "8", "9", "-10", "+ten", "11", "12", "13"]
    assert diff("a", "a") == []
    assert len(diff("a\n" * 3000, "b\n" * 3000)) == 6002
