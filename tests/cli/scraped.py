"""A scrape of `/metrics`, as Prometheus makes it."""

import time
from collections.abc import Callable, Mapping
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from onceonly.runtime.metrics.catalog import METRICS, Source
from tests.cli.probe import PATIENCE

OF_SERVERS = {sample for metric in METRICS if metric.source is Source.SERVERS for sample in metric.samples}
Labels = frozenset[tuple[str, str]]


class Scrape:
    """The samples of one scrape, by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: dict[tuple[str, Labels], float] = {}
        self.cumulative: set[str] = set()
        """The names of samples that must never decrease."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, frozenset((name, value) for name, value in sample.labels.items() if value)
                assert key not in self.samples, f"twice: {key}"
                self.samples[key] = sample.value
                if family.type in ("counter", "histogram"):
                    self.cumulative.add(sample.name)

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {name for name, _ in self.samples}

    def total(self, name: str, **labels: str) -> float:
        """Add the samples up that have these labels, given without `onceonly_`."""
        wanted = {(f"onceonly_{label}", value) for label, value in labels.items()}
        return sum(value for (found, has), value in self.samples.items() if found == name and wanted <= has)

    def get(self, name: str, **labels: str) -> float | None:
        """Return the one sample that has these labels, or None."""
        wanted = {(f"onceonly_{label}", value) for label, value in labels.items()}
        found = [value for (each, has), value in self.samples.items() if each == name and wanted <= has]
        assert len(found) <= 1, (name, labels)
        return found[0] if found else None

    def decreased(self, before: "Scrape") -> Mapping[tuple[str, Labels], tuple[float, float]]:
        """Return the counters that are less than in an earlier scrape, or gone. One that a server keeps may be unknown."""
        pairs = {
            key: (value, self.samples.get(key, value if key[0] in OF_SERVERS else -1.0))
            for key, value in before.samples.items()
            if key[0] in before.cumulative
        }
        return {key: (was, now) for key, (was, now) in pairs.items() if now < was}


def scrape(port: int) -> Scrape:
    """Scrape once."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Scrape(answer.read().decode())


def scrape_until(port: int, holds: Callable[[Scrape], bool], patience: float = PATIENCE) -> Scrape:
    """Scrape until the numbers are as they should be; Prometheus has no other way."""
    end = time.monotonic() + patience
    while not holds(found := scrape(port)):
        assert time.monotonic() < end, found.text
        time.sleep(0.1)
    return found
