"""A real Prometheus scrapes a real command: every metric that rules and dashboard use is there."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from examples.shop_demo.rabbitmq import free_port
from onceonly.cli.monitoring import shipped
from onceonly.runtime.metrics.catalog import METRICS
from tests.cli.scraped import Scrape, scrape_until
from tests.cli.terminal import Terminal
from tests.cli.test_health import probed
from tests.servers.available import on_postgresql
from tests.servers.debian import PROMETHEUS, program

PATIENCE = 150.0
DASHBOARD = json.loads(shipped("grafana.json"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
SAMPLES = {sample for metric in METRICS for sample in metric.samples}
LABELS = {label for metric in METRICS for label in metric.labels}
UNHEARD = "    context.publish({'order': order.order_id}, type='Unheard')\n    context.publish("
"""An event without a subscriber, before the one that the shop publishes."""
OFTEN = "metadata=metadata, janitor_interval=__import__('datetime').timedelta(seconds=1))"
HANDLED = 'sum(onceonly_messages_total{onceonly_outcome="handled"})'
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: shop
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def used_in(text: str) -> set[str]:
    """Find the metrics in a text."""
    return set(re.findall(r"\b(?:onceonly|messaging)_\w+", text)) - LABELS


USED = used_in(" ".join(EXPRESSIONS)) | used_in(shipped("alerts.yml"))


class Server:
    """A Prometheus that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **parameters: str) -> Any:
        """Ask its interface."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(parameters)}")
            answer = connection.getresponse()
            found = json.loads(answer.read())
        finally:
            connection.close()
        assert answer.status == HTTPStatus.OK, found
        return found["data"]

    def values(self, expression: str) -> list[float]:
        """Ask for the value of an expression."""
        return [float(each["value"][1]) for each in self.ask("query", query=expression)["result"]]

    @property
    def names(self) -> set[str]:
        """The names of the metrics that it has scraped."""
        return set(self.ask("label/__name__/values"))


def until(read: Callable[[], Any], holds: Callable[[Any], bool]) -> None:
    """Ask a Prometheus until the answer is as it should be: it scrapes once a second, and on a busy machine not each time."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if holds(found := read()):
                return
        except (ConnectionError, ValueError):  # it is starting
            found = None
        assert time.monotonic() < end, found
        time.sleep(0.2)


@contextmanager
def prometheus(folder: Path, scraped: int) -> Iterator[Server]:
    """Run one that scrapes this port, and has the rules."""
    (folder / "alerts.yml").write_text(shipped("alerts.yml"))
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(port=scraped))
    port = free_port()
    command = [
        program(PROMETHEUS),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Server(port)
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_prometheus_scrapes_a_command_and_has_each_metric_of_rules_and_dashboard(
    onceonly: Terminal, postgresql_url: str, tmp_path: Path
) -> None:
    """On PostgreSQL, which knows all of it. Each expression of the dashboard and each rule can be evaluated."""
    shop = onceonly.folder / "shop.py"
    shop.write_text(shop.read_text().replace("    context.publish(", UNHEARD, 1).replace("metadata=metadata)", OFTEN, 1))
    place = postgresql_url.replace("postgresql:", "postgresql+asyncpg:")
    places = ("--store", f"{place}?prefix=scraped_", "--transport", f"{place}?prefix=scraped_")
    onceonly("schema", "create", "shop:shop", *places[:2])
    onceonly("schema", "create", "shop:mailer", *places)
    orders = "CREATE TABLE orders (line SERIAL PRIMARY KEY, id VARCHAR(40), total INTEGER)"  # only embedded databases make it
    asyncio.run(on_postgresql("DROP TABLE IF EXISTS orders CASCADE", url=postgresql_url))  # of another test
    asyncio.run(on_postgresql(orders, url=postgresql_url))
    with probed(onceonly, "shop:shop", "shop:mailer", *places) as (run, port), prometheus(tmp_path, port) as server:
        onceonly.write("orders.jsonl", [{"order_id": f"A-{number}", "total": number - 1} for number in range(4)])
        send = ("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")
        assert onceonly(*send, *places[2:]).code == 0
        found = scrape_until(port, is_complete, PATIENCE)
        assert not USED - found.names
        until(lambda: server.values(HANDLED), lambda values: values == [6.0])
        until(lambda: server.values("up"), lambda values: values == [1.0])
        until(lambda: USED - server.names, lambda missing: not missing)  # the scrape before may have been earlier than ours
        for expression in EXPRESSIONS:
            plain = expression.replace("$endpoint", ".*").replace("$job", ".*").replace("$__rate_interval", "1m")
            server.values(plain)
        (group,) = server.ask("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
        assert run.stop() == 0


def is_complete(found: Scrape) -> bool:
    """Return whether the messages are handled, and the first maintenance is done."""
    handled = found.total("onceonly_messages_total", outcome="handled") == 6
    return handled and not USED - found.names


def test_the_dashboard_names_only_metrics_that_exist() -> None:
    """And shows all that commands serve, except for what only exists in shadow mode, before an endpoint is switched on."""
    shown = used_in(" ".join(EXPRESSIONS))
    assert shown <= SAMPLES
    families = {metric.name for metric in METRICS if not {*metric.samples} & shown}
    assert families == {"onceonly.maintenance.interval", "onceonly.shadow.messages"}


def test_the_dashboard_can_be_imported() -> None:
    """Each panel has its place, its title and a query of the data source that the reader selects."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) <= variables | {"__rate_interval", "__all"}
