"""Django's admin: dead letters with their actions, by permission, pending records, and endpoints, on each database."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from msgspec.structs import replace

from tests.dashboard.hostile import LETTERS, MARK
from tests.dashboard.serving import letter
from tests.integrations.django_admin import (
    alias_of,
    client_of,
    count_sent,
    installed_admin,
    store_letters,
    user_with,
)
from tests.integrations.django_databases import PLACES, migrated

from django.core.management import call_command  # isort: skip - Django is set up before
from django.db import connections, transaction  # isort: skip - the same
from django.test import AsyncClient  # isort: skip - the same
from django.test.utils import CaptureQueriesContext, override_settings  # isort: skip - the same

from onceonly.integrations.django import Endpoint  # isort: skip - the same
from onceonly.integrations.django import admin_actions, admin_reading  # isort: skip - the same
from onceonly.integrations.django.endpoint import ENDPOINTS as KNOWN  # isort: skip - the same
from onceonly.integrations.django.schema import empty_tables  # isort: skip - the same

LIST = "/admin/onceonly/deadletter/"
PENDING = "/admin/onceonly/pendingrecord/"
ENDPOINTS = "/admin/onceonly/endpointstatus/"
ALL = ("view_deadletter", "retry_deadletter", "delete_deadletter", "view_pendingrecord", "view_endpointstatus")


@pytest.fixture(params=PLACES, scope="module")
def alias(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a database with all tables an alias, and install the admin."""
    folder = tmp_path_factory.mktemp("admin")
    with ExitStack() as stack:
        found = stack.enter_context(migrated(request.param, folder, suffix="_admin", app="onceonly"))
        stack.enter_context(installed_admin(folder))
        yield found


@pytest.fixture
def shop(alias: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """Make an endpoint, and leave no rows. However slow the machine is, its actions are waited for."""
    monkeypatch.setattr(admin_actions, "ANSWER_SECONDS", 120.0)
    with override_settings(ONCEONLY={"SENDING_THREAD": False, "DATABASE": alias}):
        endpoint = Endpoint("shop", transport=f"sqlite:///{tmp_path}/queue.db")
        yield endpoint
        for each in [each for each in KNOWN if each.database == alias]:
            KNOWN.discard(each)  # the garbage collector may come later than the next endpoint of this name
        empty_tables(alias)


def page_of(client: Any, path: str, status: int = 200) -> str:
    """Return a page, in which no element comes from a message."""
    response = client.get(path)
    assert response.status_code == status, response.content.decode()[:2000]
    text: str = response.content.decode()
    assert f"<{MARK}" not in text.lower()
    return text


def position_of(alias: str, key: str) -> int:
    """Return the position of a letter."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT position FROM onceonly_dead_letters WHERE key = %s".replace(" key ", _quoted(alias)), [key])
        return int(cursor.fetchone()[0])


def _quoted(alias: str) -> str:
    return f" {connections[alias].ops.quote_name('key')} "


def count(alias: str, table: str = "dead_letters") -> int:
    """Count rows past the library."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM onceonly_{table}")  # noqa: S608 - of this test
        return int(cursor.fetchone()[0])


def actions(alias: str) -> list[tuple[Any, ...]]:
    """Return what is stored of actions."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT actor, method, action, endpoint, state, total, done, kept FROM onceonly_actions ORDER BY position"
        )
        return list(cursor.fetchall())


def shown_keys(page: str) -> list[str]:
    """Return the keys in a list, in order."""
    return re.findall(r'field-short_key"><a [^>]*>([0-9a-f]{12})<', page)


def form_of(page: str) -> dict[str, list[str]]:
    """Return the hidden fields of the form of a page that confirms something."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page):
        found.setdefault(name, []).append(value)
    return found


def select(client: Any, action: str, positions: list[int], path: str = LIST, **more: Any) -> Any:
    """Choose an action in the list."""
    return client.post(path, {"action": action, "_selected_action": positions, "index": 0, "select_across": 0, **more})


def test_letters_are_listed_the_newest_first(shop: Endpoint) -> None:
    """With type, reason and time; an action is offered to those who may do it."""
    letters = [letter(number=number) for number in range(1, 4)]
    store_letters(shop, letters)
    page = page_of(client_of(user_with("view_deadletter")), LIST)
    assert shown_keys(page) == [each.key[:12] for each in reversed(letters)]
    assert "ValueError: total is negative: -30" in page
    assert "PlaceOrder" in page
    assert 'name="action"' not in page
    page = page_of(client_of(user_with("view_deadletter", "retry_deadletter")), LIST)
    assert 'value="retry_selected"' in page
    assert 'value="delete_selected"' not in page


def test_letters_are_filtered_and_searched(shop: Endpoint) -> None:
    """By endpoint, type and failure, by a part of the reason, and by key; what no list offers finds nothing, or is refused."""
    one, other = letter(), letter("billing", number=2, reason="TimeoutError: 100% gone", history=())
    other = replace(other, message=replace(other.message, type="Bill") if other.message else None)
    store_letters(shop, [one, other])
    client = client_of(user_with("view_deadletter"))
    page = page_of(client, LIST)
    (found,) = re.findall(r"\?failure=(billing%3A[0-9a-f]{32})", page)
    asked = {
        "endpoint=billing": [other],
        "endpoint=shop": [one],
        "endpoint=none": [],
        "type=Bill": [other],
        "type=Other": [],
        f"failure={found}": [other],
        f"failure={found}&endpoint=billing": [other],
        f"failure={found}&endpoint=shop": [],
        "failure=billing:zz": [],
        "failure=%00:00000000000000000000000000000000": [],
        "q=TimeoutError": [other],
        "q=100%25": [other],
        "q=Bill&endpoint=shop": [],
        f"q={one.key}": [one],
        "type=%00": [],
        "endpoint=%00": [],
        "q=%00": [],
        "before=99999999999999999999999": [],
    }
    for query, letters in asked.items():
        assert shown_keys(page_of(client, f"{LIST}?{query}")) == [each.key[:12] for each in letters], query
    assert client.get(f"{LIST}?reason__regex=a").status_code == 400
    assert client.get(f"{LIST}?database=none").status_code == 200


def test_a_letter_shows_what_is_kept(shop: Endpoint, alias: str) -> None:
    """Body, headers without secrets, attempts, traceback."""
    kept = letter(headers=(("tenant", "blue"), ("authorization", "Bearer of-nobody-else")))
    store_letters(shop, [kept])
    page = page_of(client_of(user_with("view_deadletter")), f"{LIST}{position_of(alias, kept.key)}/change/")
    for text in ("&quot;order_id&quot;: &quot;A-1&quot;", "blue", "gateway.post(order)", kept.key, "A-1", "shop.place"):
        assert text in page
    assert "of-nobody-else" not in page
    assert "/retry/" not in page
    assert "/delete/" not in page
    assert "Save" not in page


def test_without_permission_there_are_no_pages(shop: Endpoint, alias: str) -> None:
    """Not for those who may not enter, nor for those who may do other things. Nothing can be added or changed by anybody."""
    store_letters(shop, [letter()])
    position = position_of(alias, letter().key)
    pages = (LIST, f"{LIST}{position}/change/", f"{LIST}{position}/retry/", f"{LIST}{position}/delete/", PENDING, ENDPOINTS)
    others = client_of(user_with())
    viewer = client_of(user_with("view_deadletter", name="bob"))
    for path in pages:
        assert others.get(path).status_code == 403
        assert others.post(path).status_code == 403
    for path in pages[2:]:
        assert viewer.get(path).status_code == 403
        assert viewer.post(path, {"confirmed": "x"}).status_code == 403
    select(viewer, "delete_selected", [position], confirmed="x")
    select(viewer, "retry_selected", [position], confirmed="x")
    assert (count(alias), actions(alias), count_sent(shop)) == (1, [], 0)
    everybody = client_of(user_with(*ALL, name="eve"))
    for path in (f"{LIST}add/", f"{PENDING}add/", f"{ENDPOINTS}add/"):
        assert everybody.get(path).status_code == 403
    assert everybody.post(f"{LIST}{position}/change/", {"reason": "x"}).status_code == 403
    assert everybody.get(f"{LIST}{position}/history/").status_code == 404
    assert everybody.get(f"{PENDING}1/delete/").status_code == 403
    assert everybody.get(f"{LIST}no-number/change/").status_code == 302
    assert everybody.get(f"{LIST}none_3A1/change/").status_code == 302


def test_a_superuser_may_do_everything_that_the_pages_offer(shop: Endpoint, alias: str) -> None:
    """That includes no change."""
    store_letters(shop, [letter()])
    user = user_with(name="root")
    user.is_superuser = True
    user.save()
    page = page_of(client_of(user), f"{LIST}{position_of(alias, letter().key)}/change/")
    assert "/retry/" in page
    assert "/delete/" in page
    assert "Save" not in page


def test_a_letter_is_retried_once(shop: Endpoint, alias: str) -> None:
    """It is confirmed, in the queue once, gone, and stored with the operator; the same form again does nothing."""
    store_letters(shop, [letter(), letter(number=2)])
    client = client_of(user_with("view_deadletter", "retry_deadletter"))
    path = f"{LIST}{position_of(alias, letter().key)}/retry/"
    form = form_of(page_of(client, path))
    assert count_sent(shop) == 0
    response = client.post(path, form, follow=True)
    assert re.search(r"1 dead letter of shop retried \(action \d+\)", response.content.decode())
    assert (count_sent(shop), count(alias)) == (1, 1)
    assert actions(alias) == [("ana", "django", "retry", "shop", "done", 1, 1, 0)]
    assert client.get(path).status_code == 302
    store_letters(shop, [letter()])
    path = f"{LIST}{position_of(alias, letter().key)}/retry/"
    assert "this form was sent before" in client.post(path, form, follow=True).content.decode()
    assert (count_sent(shop), count(alias)) == (1, 2)
    page = page_of(client, f"{LIST}{position_of(alias, letter().key)}/change/")
    assert re.search(r"Action \d+, \S+: ana, retry", page)


def test_selected_letters_are_deleted_after_a_confirmation(shop: Endpoint, alias: str) -> None:
    """Those that were selected, of both endpoints, and no others; each endpoint has its action."""
    letters = [letter(), letter(number=2), letter("billing", number=3)]
    store_letters(shop, letters)
    client = client_of(user_with("view_deadletter", "delete_deadletter"))
    chosen = [position_of(alias, each.key) for each in letters[1:]]
    confirmation = select(client, "delete_selected", chosen).content.decode()
    assert "Delete 2 dead letters" in confirmation
    assert count(alias) == 3
    response = client.post(LIST, form_of(confirmation), follow=True)
    assert re.search(r"1 dead letter of billing deleted \(action \d+\)", response.content.decode())
    assert count(alias) == 1
    assert shown_keys(page_of(client, LIST)) == [letters[0].key[:12]]
    assert actions(alias) == [
        ("ana", "django", "delete", "billing", "done", 1, 1, 0),
        ("ana", "django", "delete", "shop", "done", 1, 1, 0),
    ]


def test_all_letters_of_a_filter_are_retried(shop: Endpoint, alias: str) -> None:
    """Also those of other pages; the confirmation names them, and no later ones."""
    store_letters(shop, [*(letter(number=number) for number in range(120)), letter("billing")])
    client = client_of(user_with("view_deadletter", "retry_deadletter"))
    page = select(client, "retry_selected", [1], f"{LIST}?endpoint=shop", select_across=1).content.decode()
    assert "Retry 120 dead letters" in page
    store_letters(shop, [letter(number=500)])
    client.post(f"{LIST}?endpoint=shop", form_of(page))
    assert (count_sent(shop), count(alias)) == (120, 2)
    assert [each[2:] for each in actions(alias)] == [("retry", "shop", "done", 120, 120, 0)]


def test_too_many_letters_are_refused(shop: Endpoint, alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that can do it."""
    from onceonly.integrations.django import admin  # noqa: PLC0415 - the app is installed for a block

    monkeypatch.setattr(admin, "AT_ONCE", 2)
    store_letters(shop, [letter(number=number) for number in range(3)])
    client = client_of(user_with("view_deadletter", "delete_deadletter"))
    response = client.post(
        LIST, {"action": "delete_selected", "_selected_action": [1], "index": 0, "select_across": 1}, follow=True
    )
    assert "manage.py onceonly dead purge" in response.content.decode()
    assert (count(alias), actions(alias)) == (3, [])


def test_what_cannot_be_retried_is_kept_and_told(shop: Endpoint, alias: str) -> None:
    """A letter without identity, one of an endpoint that the project does not have, and one that goes meanwhile."""
    anonymous, foreign, going = letter(message=None), letter("elsewhere"), letter(number=3)
    store_letters(shop, [anonymous, foreign, going])
    client = client_of(user_with("view_deadletter", "retry_deadletter", "delete_deadletter"))
    chosen = [position_of(alias, each.key) for each in (anonymous, foreign)]
    form = form_of(select(client, "retry_selected", chosen).content.decode())
    text = client.post(LIST, form, follow=True).content.decode()
    assert "it has no identity" in text
    assert "endpoint &#x27;elsewhere&#x27; is unknown" in text
    assert (count(alias), count_sent(shop)) == (3, 0)
    form = form_of(select(client, "delete_selected", [*chosen, position_of(alias, going.key)]).content.decode())
    client.post(f"{LIST}{position_of(alias, going.key)}/delete/", {"confirmed": "y"})
    client.post(LIST, form)
    assert count(alias) == 0


def test_an_unreachable_broker_is_told(shop: Endpoint, alias: str) -> None:
    """The letter stays, and the page is there."""
    store_letters(shop, [letter()])
    away = Endpoint("shop", transport="amqp://127.0.0.1:9/")
    admin_reading.ENDPOINTS.discard(shop)
    path = f"{LIST}{position_of(alias, letter().key)}/retry/"
    client = client_of(user_with("view_deadletter", "retry_deadletter"))
    page = client.post(path, {"confirmed": "x"}, follow=True).content.decode()
    assert f'<li class="warning">{letter().key} was not retried: the broker did not confirm it.' in page
    assert (count(alias), away.name) == (1, "shop")


@pytest.mark.parametrize("name", ["list", "one by one"])
def test_hostile_letters_are_only_text(shop: Endpoint, alias: str, name: str) -> None:
    """In lists, filters, pages and confirmations, whatever is in bodies, headers, types and reasons."""
    store_letters(shop, [each for _, each in LETTERS])
    client = client_of(user_with(*ALL))
    if name == "list":
        pages = [page_of(client, LIST), page_of(client, f"{LIST}?all="), page_of(client, ENDPOINTS)]
        assert len(shown_keys(pages[0])) == min(100, len(LETTERS))
        return
    for _, each in LETTERS:
        position = position_of(alias, each.key)
        page_of(client, f"{LIST}{position}/change/")
        page_of(client, f"{LIST}{position}/retry/")


def test_bodies_that_are_no_text_and_large_ones(shop: Endpoint, alias: str) -> None:
    """Bytes are shown as digits, and of a large body only the beginning."""
    odd, large, empty = letter(body=b"\xff\xfe\x00<b>"), letter(number=2, body=b"<p>" * 1_000_000), letter(number=3, body=b"")
    store_letters(shop, [odd, large, empty])
    client = client_of(user_with("view_deadletter"))
    assert "ff fe 00 3c 62 3e" in page_of(client, f"{LIST}{position_of(alias, odd.key)}/change/")
    page = page_of(client, f"{LIST}{position_of(alias, large.key)}/change/")
    assert "3,000,000 bytes, text. Only the beginning is shown." in page
    assert len(page) < 400_000
    assert "0 bytes, empty." in page_of(client, f"{LIST}{position_of(alias, empty.key)}/change/")


def test_an_unreadable_letter_can_be_seen_and_deleted(shop: Endpoint, alias: str) -> None:
    """It cannot be retried, and the others are there."""
    store_letters(shop, [letter(), letter(number=2)])
    position = position_of(alias, letter().key)
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE onceonly_dead_letters SET letter = %s WHERE position = %s", [b"\x63<b>", position])
    client = client_of(user_with("view_deadletter", "retry_deadletter", "delete_deadletter"))
    assert len(shown_keys(page_of(client, LIST))) == 2
    page = page_of(client, f"{LIST}{position}/change/")
    assert "unreadable dead letter: stored by a newer onceonly" in page
    assert "this version cannot read" in page
    text = client.post(f"{LIST}{position}/retry/", {"confirmed": "a"}, follow=True).content.decode()
    assert "this version cannot read it" in text
    assert (count(alias), count_sent(shop)) == (2, 0)
    client.post(f"{LIST}{position}/delete/", {"confirmed": "b"})
    assert count(alias) == 1


def test_pending_records_are_shown(shop: Endpoint, alias: str) -> None:
    """The oldest first, with the messages that wait; also one that cannot be read. Nothing can be done with them."""
    with transaction.atomic(using=alias):
        shop.publish({"order": "a"}, type=f"<{MARK}>")
        shop.send({"order": "a"}, to="billing", type="Bill")
    client = client_of(user_with("view_pendingrecord"))
    page = page_of(client, PENDING)
    links = re.findall(rf"{PENDING}([0-9a-f]{{32}})/change/", page)
    assert len(links) == 2
    assert 'name="action"' not in page
    texts = [page_of(client, f"{PENDING}{each}/change/") for each in links]
    assert any("Bill to billing" in each for each in texts)
    assert any(f"&lt;{MARK}&gt; to its subscribers" in each for each in texts)
    assert shown_records(page_of(client, f"{PENDING}?endpoint=other")) == 0
    assert shown_records(page_of(client, f"{PENDING}?endpoint=shop")) == 2
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE onceonly_records SET effects = %s", [b"\x63"])
    assert "This version cannot read the record" in page_of(client, f"{PENDING}{links[0]}/change/")
    assert client.get(f"{PENDING}{'0' * 32}/change/").status_code == 302
    assert client.get(f"{PENDING}zz/change/").status_code == 302


def shown_records(page: str) -> int:
    """Count the rows of the list of pending records."""
    return page.count("field-message_text")


def test_endpoints_are_shown(shop: Endpoint, alias: str) -> None:
    """Those of the project, and those of which only rows are left; lists are linked for those who may see them."""
    store_letters(shop, [letter(), letter("gone")])
    with transaction.atomic(using=alias):
        shop.publish({"order": "a"}, type="Placed")
    page = page_of(client_of(user_with("view_endpointstatus")), ENDPOINTS)
    assert "It is not in ONCEONLY[&quot;ENDPOINTS&quot;]." in page
    assert f"<td>{alias}</td>" in page
    assert f'href="{LIST}?' not in page
    page = page_of(client_of(user_with("view_endpointstatus", "view_deadletter", "view_pendingrecord")), ENDPOINTS)
    for path in (LIST, PENDING):
        assert f'<a href="{path}?endpoint=shop&amp;database={alias}">1</a>' in page
    assert page_of(client_of(user_with("view_endpointstatus")), f"{ENDPOINTS}shop/change/", 302) == ""


def test_a_long_list_reads_a_limited_number_of_rows(shop: Endpoint, alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted in the whole table, a search ends, and older letters are behind a link."""
    monkeypatch.setattr(admin_reading, "LISTED", 5)
    letters = [letter(number=number) for number in range(12)]
    store_letters(shop, letters)
    client = client_of(user_with("view_deadletter"))
    for query in ("?", "?endpoint=shop&", "?q=total&"):
        with CaptureQueriesContext(connections[alias]) as queries:
            page = page_of(client, f"{LIST}{query}")
        texts = [each["sql"] for each in queries.captured_queries]
        assert any("COUNT(" in text.upper() for text in texts)
        for text in texts:
            limits = ("LIMIT ", "BETWEEN ", " IN (", "position` >=", '"position" >=', "FETCH")
            assert not text.upper().startswith("SELECT COUNT") or any(each in text for each in limits), text
        assert len(shown_keys(page)) == 5
        seen = shown_keys(page)
        while found := re.search(r'<a href="(\?[^"]*before=[^"]*)">Older', page):
            page = page_of(client, LIST + found[1].replace("&amp;", "&"))
            seen += shown_keys(page)
        assert seen == [each.key[:12] for each in reversed(letters)]


def test_the_admin_reads_one_of_several_databases(shop: Endpoint, alias: str, tmp_path: Path) -> None:
    """A filter chooses it, and pages and actions stay in it."""
    store_letters(shop, [letter(number=9)])
    with alias_of("second", f"sqlite:///{tmp_path}/second.db"):
        call_command("migrate", "onceonly", database="second", verbosity=0)
        other = Endpoint("shop", database="second", transport=f"sqlite:///{tmp_path}/other.db")
        store_letters(other, [letter(), letter(number=2)])
        client = client_of(user_with("view_deadletter", "retry_deadletter"))
        assert len(shown_keys(page_of(client, LIST))) == 1
        page = page_of(client, f"{LIST}?database=second")
        assert len(shown_keys(page)) == 2
        position = position_of("second", letter().key)
        path = f"{LIST}second_3A{position}/"
        assert f"{path}change/" in page
        assert f'href="{path}retry/"' in page_of(client, f"{path}change/")
        response = client.post(f"{path}retry/", {"confirmed": "x"})
        assert response.headers["location"] == f"{LIST}?database=second"
        assert (count("second"), count(alias), count_sent(other), count_sent(shop)) == (1, 1, 1, 0)
        second = position_of("second", letter(number=2).key)
        form = form_of(select(client, "retry_selected", [second], f"{LIST}?database=second").content.decode())
        client.post(f"{LIST}?database=second", form)
        assert (count("second"), count(alias), count_sent(other), count_sent(shop)) == (0, 1, 2, 0)


def test_forms_need_the_token_of_a_page(shop: Endpoint, alias: str) -> None:
    """A form of another site is refused."""
    store_letters(shop, [letter()])
    user = user_with("view_deadletter", "retry_deadletter", "delete_deadletter")
    client = client_of(user, enforce_csrf_checks=True)
    for page in ("retry", "delete"):
        path = f"{LIST}{position_of(alias, letter().key)}/{page}/"
        assert client.post(path, {"confirmed": "x"}).status_code == 403
    assert select(client, "delete_selected", [1], confirmed="x").status_code == 403
    assert (count(alias), actions(alias)) == (1, [])


def test_atomic_requests_do_not_hold_a_lock_against_the_action(shop: Endpoint, alias: str) -> None:
    """The pages are taken out of them, so that the operation's own connection can write."""
    store_letters(shop, [letter()])
    database = connections[alias].settings_dict
    database["ATOMIC_REQUESTS"] = True
    try:
        client = client_of(user_with("view_deadletter", "delete_deadletter"))
        page = select(client, "delete_selected", [position_of(alias, letter().key)]).content.decode()
        client.post(LIST, form_of(page))
    finally:
        database["ATOMIC_REQUESTS"] = False
    assert count(alias) == 0


def test_an_asgi_server_can_act(shop: Endpoint, alias: str) -> None:
    """There the pages run in a thread, next to the event loop of the server."""
    store_letters(shop, [letter()])
    user, path = user_with("view_deadletter", "retry_deadletter"), f"{LIST}{position_of(alias, letter().key)}/retry/"

    async def retry() -> str:
        client = AsyncClient()
        async with ThreadSensitiveContext():  # a thread of its own, as in a server: another one has connections of other tests
            await sync_to_async(client.force_login)(user)
            try:
                done = await client.post(path, {"confirmed": "x"})
                page = await client.get(done["Location"])
                return "".join(re.findall(r'<ul class="messagelist">.*?</ul>', page.content.decode(), re.DOTALL))
            finally:
                await sync_to_async(connections.close_all)()

    assert "1 dead letter of shop retried" in (told := asyncio.run(retry())), told
    assert (count_sent(shop), count(alias)) == (1, 0)


def test_a_retry_needs_a_form(shop: Endpoint, alias: str) -> None:
    """Without its number the page asks again."""
    store_letters(shop, [letter()])
    path = f"{LIST}{position_of(alias, letter().key)}/retry/"
    assert b"Retry 1 dead letter" in client_of(user_with("retry_deadletter")).post(path).content
    assert (count_sent(shop), count(alias)) == (0, 1)


def test_django_finds_nothing_wrong_with_the_pages(shop: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it ask for a migration."""
    assert shop.name == "shop"
    call_command("check", "admin", "onceonly", fail_level="INFO")
    call_command("makemigrations", "onceonly", check=True, dry_run=True)
    assert "No changes detected in app 'onceonly'" in capsys.readouterr().out


def test_models_can_be_dumped(shop: Endpoint, alias: str, tmp_path: Path) -> None:
    """`dumpdata` asks for no table that is not there."""
    store_letters(shop, [letter()])
    call_command("dumpdata", "onceonly", database=alias, output=str(tmp_path / "dump.json"))
    assert letter().key in (tmp_path / "dump.json").read_text()


def test_a_letter_that_is_not_there_is_not_an_error(shop: Endpoint, alias: str) -> None:
    """As one that a test has not committed: the action tells so, and ends."""
    keys = {shop.name: ["0" * 32]}
    (done,) = admin_actions.perform(admin_actions.ActionKind.DELETE, keys, alias=alias, user="ana", form="x")
    assert (done.done, done.kept, done.problem) == (0, (("0" * 32, "letter is gone"),), "")
