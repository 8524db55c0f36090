"""`/metrics` of `onceonly run --health`: the numbers of real processes, and gauges from their databases."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceonly import Endpoint
from onceonly.assembly.gauges import GaugePart, GaugeReader, Values, parts_of
from onceonly.cli import metrics
from onceonly.cli.metrics import MetricsPage, fixed, prometheus_text
from onceonly.runtime.metrics import catalog
from onceonly.runtime.metrics.observer import MOST_DESTINATIONS, MOST_ERRORS, MOST_TYPES, OTHER
from onceonly.runtime.metrics.series import Numbers, SeriesFile, SharedSeries, series_path
from onceonly.runtime.observe.http import HealthReply, TextBody
from tests.cli.probe import ask
from tests.cli.scraped import Scrape, scrape_until
from tests.cli.terminal import Terminal
from tests.cli.test_health import probed

ORDERS = [{"order_id": f"A-{number}", "total": number - 1} for number in range(4)]


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_the_numbers_of_two_processes_add_up_and_gauges_come_from_the_database(onceonly: Terminal) -> None:
    """Handled, given up, published, received by the other endpoint; then the same from the database."""
    with probed(onceonly, "shop:shop", "shop:mailer", "-p", "2") as (run, port):
        onceonly.write("orders.jsonl", ORDERS)
        onceonly("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")
        total = "onceonly_messages_total"
        scrape_until(port, lambda found: found.total(total, endpoint="mailer", outcome="handled") == 3)
        found = scrape_until(port, lambda found: found.total(total, endpoint="shop") == 4)
        assert found.total(total, endpoint="shop", outcome="handled") == 3
        assert found.total(total, endpoint="shop", outcome="dead_letter") == 1
        assert found.total("messaging_client_sent_messages_total", endpoint="shop") == 3
        found = scrape_until(port, lambda found: found.get("onceonly_dead_letters", endpoint="shop") == 1)
        assert found.get("onceonly_dead_letters", endpoint="mailer") == 0
        assert (found.get("onceonly_dead_letters_oldest_age_seconds", endpoint="shop") or 0) > 0
        assert found.get("onceonly_queue_messages", endpoint="shop", state="waiting") == 0
        assert found.get("onceonly_source_up", endpoint="shop", part="store") == 1
        scrape_until(port, lambda found: found.get("onceonly_processes", state="running") == 2)  # the other may still start
        assert run.stop() == 0


@pytest.mark.slow
def test_a_database_that_is_gone_has_no_gauges(onceonly: Terminal) -> None:
    """It is down, and its numbers are unknown: not 0, and not the last ones. The counters stay."""
    with probed(onceonly, "shop:shop") as (run, port):
        scrape_until(port, lambda found: found.get("onceonly_pending_records", endpoint="shop") == 0)
        onceonly.change("shop.db", "ALTER TABLE onceonly_records RENAME TO hidden")
        found = scrape_until(port, lambda found: found.get("onceonly_source_up", endpoint="shop", part="store") == 0)
        assert found.get("onceonly_pending_records", endpoint="shop") is None
        assert found.get("onceonly_pending_oldest_age_seconds", endpoint="shop") is None
        assert found.get("onceonly_source_up", endpoint="shop", part="transport") == 1
        assert found.get("onceonly_queue_messages", endpoint="shop", state="waiting") == 0
        onceonly.change("shop.db", "ALTER TABLE hidden RENAME TO onceonly_records")
        scrape_until(port, lambda found: found.get("onceonly_pending_records", endpoint="shop") == 0)
        assert run.stop() == 0


@pytest.mark.slow
def test_without_the_library_the_page_says_what_to_install(onceonly: Terminal) -> None:
    """The probes work all the same."""
    program = onceonly.folder / "without.py"
    program.write_text(
        "import sys\nfrom importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'prometheus_client' else find(name, *rest)\n"
        "from onceonly.cli import main\nmain(sys.argv[1:])\n"
    )
    with onceonly.start("run", "shop:shop", "--health", "0", program=(sys.executable, "without.py")) as process:
        try:
            assert process.stdout is not None
            port = next(int(line.rsplit(":", 1)[1]) for line in process.stdout if "health server listening" in line)
            status, body = ask(port, "/metrics")
            assert (status, body) == (501, {"error": "/metrics needs prometheus_client: pip install 'onceonly[prometheus]'"})
            assert ask(port, "/live")[0] == 200
        finally:
            process.terminate()
            process.communicate()


class ServerOfOneNumber:
    """What is opened and read; it can be away, or silent."""

    def __init__(self) -> None:
        self.opened = self.reads = 0
        self.is_away = self.is_silent = False
        self.asked = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["ServerOfOneNumber"]:
        """Open it."""
        self.opened += 1
        yield self

    async def read(self, _opened: object) -> Values:
        """Return how often it was read."""
        self.reads += 1
        self.asked.set()
        if self.is_away:
            raise OSError("away")
        if self.is_silent:
            await asyncio.Event().wait()
        return {(catalog.PENDING, ("shop",)): self.reads}


UP, READS = (catalog.UP, ("shop", "store")), (catalog.PENDING, ("shop",))


async def test_a_server_is_read_once_in_a_while_however_many_ask() -> None:
    """On one connection."""
    server = ServerOfOneNumber()
    reader = GaugeReader([GaugePart("shop", "store", server.open, server.read)], every=1000)
    answers = await asyncio.gather(*(reader.values() for _ in range(20)))
    assert answers == [{UP: 1, READS: 1}] * 20
    assert await reader.values() == {UP: 1, READS: 1}
    assert (server.opened, server.reads) == (1, 1)
    await reader.close()


async def test_who_gives_up_asking_does_not_end_the_read_for_others() -> None:
    """A scrape may be cut off."""
    server = ServerOfOneNumber()
    reader = GaugeReader([GaugePart("shop", "store", server.open, server.read)], every=1000)
    first, second = (asyncio.create_task(reader.values()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == {UP: 1, READS: 1}
    await reader.close()


async def test_closing_ends_no_scrape() -> None:
    """It is answered without the gauges."""
    server = ServerOfOneNumber()
    server.is_silent = True
    reader = GaugeReader([GaugePart("shop", "store", server.open, server.read)])
    asking = asyncio.create_task(reader.values())
    await server.asked.wait()
    await reader.close()
    assert await asking == {}


async def test_a_scrape_does_not_wait_for_a_slow_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts are down in its answer. The read goes on."""
    monkeypatch.setattr("onceonly.assembly.gauges.SCRAPE_SECONDS", 0.1)
    monkeypatch.setattr("onceonly.assembly.gauges.ANSWER_SECONDS", 60.0)
    server = ServerOfOneNumber()
    server.is_silent = True
    reader = GaugeReader([GaugePart("shop", "store", server.open, server.read)])
    assert await reader.values() == {UP: 0}
    assert server.reads == 1
    await reader.close()


async def test_a_store_is_opened_again_until_it_has_all_that_is_read() -> None:
    """A store that no process has used yet has no time buckets."""
    server = ServerOfOneNumber()
    part = GaugePart("shop", "store", server.open, server.read, is_whole=lambda opened: opened.opened > 2)
    reader = GaugeReader([part], every=0)
    opened = [((await reader.values())[UP], server.opened) for _ in range(5)]
    assert opened == [(1, 1), (1, 2), (1, 3), (1, 3), (1, 3)]
    await reader.close()


@pytest.mark.parametrize("trouble", ["is_away", "is_silent"])
async def test_a_server_that_does_not_answer_is_down_and_opened_again(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parts are read."""
    monkeypatch.setattr("onceonly.assembly.gauges.ANSWER_SECONDS", 0.1)
    server, other = ServerOfOneNumber(), ServerOfOneNumber()
    parts = [GaugePart("shop", "store", server.open, server.read), GaugePart("shop", "transport", other.open, other.read)]
    reader = GaugeReader(parts, every=0)
    setattr(server, trouble, True)
    found = await reader.values()
    assert found[UP] == 0
    assert found[catalog.UP, ("shop", "transport")] == 1
    setattr(server, trouble, False)
    assert (await reader.values())[UP] == 1
    assert (server.opened, other.opened) == (2, 1)
    await reader.close()


def test_what_is_in_the_memory_of_a_process_is_not_read() -> None:
    """The command could only see a memory of its own, which is empty: its gauges are absent."""
    endpoint = Endpoint("shop", store="memory://a", transport="memory://a")
    assert parts_of(endpoint.settings, ()) == []


async def test_all_processes_together_have_a_bounded_number_of_error_types(tmp_path: Path) -> None:
    """Each may have fifty of its own. A row that was shown once keeps its name, so no counter decreases."""
    with SharedSeries(tmp_path, 2) as series:
        page = MetricsPage(series, [], list, silent=1)
        for index in range(2):
            with SeriesFile(series_path(tmp_path, index)) as file:
                for number in range(MOST_ERRORS):
                    file.instrument(catalog.SENT).add(("shop", "memory", "send", "", f"Error{index}-{number}"))
        before = text_of(await page())
        assert sum("Error" in str(labels) for _, labels in before.samples) == MOST_ERRORS
        assert before.total("messaging_client_sent_messages_total") == 2 * MOST_ERRORS
        assert text_of(await page()).decreased(before) == {}


def text_of(reply: Any) -> Scrape:
    """Read an answer of the page."""
    return Scrape(reply.body.content.decode())


def test_a_histogram_adds_its_buckets_up() -> None:
    """In the text of Prometheus each has those below, and their number is the count."""
    row = catalog.BATCH_SIZE, ("shop",)
    found = Scrape(prometheus_text({row: Numbers((2, 1, 0, 0, 0, 0, 1, 1), 203.5)}).content.decode())
    bucket = {dict(labels)["le"]: value for (name, labels), value in found.samples.items() if name.endswith("_bucket")}
    assert bucket == {"1.0": 2, "2.0": 3, "5.0": 3, "10.0": 3, "20.0": 3, "50.0": 3, "100.0": 4, "+Inf": 5}
    assert (found.get("onceonly_batch_size_count"), found.get("onceonly_batch_size_sum")) == (5, 203.5)


def test_hostile_names_are_escaped() -> None:
    """Quotes, line feeds and backslashes end no label."""
    name = 'a"} 1\nonceonly_messages_total{x="\\'
    found = Scrape(prometheus_text({(catalog.MESSAGES, (name, "t", "handled")): Numbers((1,))}).content.decode())
    assert found.names == {"onceonly_messages_total"}
    assert {dict(labels)["onceonly_endpoint"] for _, labels in found.samples} == {name}


def test_what_follows_from_settings_is_known_without_a_server() -> None:
    """Alerts compare with it."""
    endpoint = Endpoint("shop", store="sqlite:///a.db", transport="sqlite:///a.db")
    values = {metric.name: value for (metric, _), value in fixed([endpoint.settings]).items()}
    assert values == {"onceonly.retention": 7 * 86_400.0, "onceonly.maintenance.interval": 60.0}


def test_the_library_is_here() -> None:
    """Otherwise the tests above would prove nothing."""
    assert metrics.can_serve_metrics()


async def test_events_without_a_subscriber_have_a_bounded_number_of_rows() -> None:
    """The rows of the first read stay; what comes beyond them is counted together, and nothing is lost."""
    endpoint = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///shop.db")
    (part,) = (part for part in parts_of(endpoint.settings, ()) if part.up[1] == ("shop", "store"))
    counts = {f"Event{number:04}": number + 1 for number in range(3000)}

    async def read() -> dict[str, int]:
        return counts

    opened: Any = SimpleNamespace(pending=None, journals=None, ring=None, shadow=None, unsubscribed=SimpleNamespace(read=read))
    rows = await part._read(opened)
    assert len(rows) == MOST_TYPES + 1
    assert sum(rows.values()) == sum(counts.values())
    counts["Aaa"] = 1_000_000
    again = await part._read(opened)
    assert rows.keys() == again.keys()
    assert again[catalog.UNSUBSCRIBED, ("shop", OTHER)] == rows[catalog.UNSUBSCRIBED, ("shop", OTHER)] + 1_000_000


def page_text(reply: HealthReply) -> str:
    """Return the text of a page."""
    assert isinstance(reply.body, TextBody)
    return reply.body.content.decode()


async def test_processes_with_other_destinations_have_a_bounded_number_of_rows(tmp_path: Path) -> None:
    """Each process knows 50; the page has no more, and the endpoint's own queue is one of them."""
    endpoint = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///shop.db")
    with SharedSeries(tmp_path, 3) as series:
        page = MetricsPage(series, [endpoint.settings], list, silent=10)
        for process in range(3):
            with SeriesFile(series_path(tmp_path, process)) as file:
                sent = file.instrument(catalog.SENT)
                for number in range(40):
                    sent.add(("shop", "sqlite", "send", f"to-{process}-{number}", ""))
                sent.add(("shop", "sqlite", "retry", "shop", ""))
        text = page_text(await page())
    lines = [line for line in text.splitlines() if line.startswith("messaging_client_sent_messages_total{")]
    assert len(lines) <= MOST_DESTINATIONS + 1
    assert sum(float(line.rsplit(" ", 1)[1]) for line in lines) == 123
    assert any('messaging_destination_name="shop"' in line and line.endswith(" 3.0") for line in lines)
