"""The two endpoints of the demo, on tables or on entities, and the worker processes that run them."""

import asyncio
from pathlib import Path

from onceonly import Endpoint, Retry, WorkerSettings
from onceonly.endpoint.host import host_of
from onceonly.runtime.environment import LIVE
from onceonly.runtime.processes.child import run_child
from onceonly.runtime.processes.counters import CounterRow
from onceonly_demo.entity_handlers import register_entity_handlers
from onceonly_demo.flight_documents import FlightDocuments
from onceonly_demo.flights import LEDGER, LOYALTY
from onceonly_demo.locations import Locations
from onceonly_demo.table_handlers import DemoTables, register_table_handlers
from onceonly_demo.waits import StepRecorder

BATCH = 25  # a killed process's messages come again, so a demo that kills takes fewer than the default
# A message that several killed processes held is neither given up nor delayed for minutes.
PATIENT = Retry(delayed=100, first_delay=1.0, factor=1.0)
GRACE_SECONDS = 5.0
"""Seconds to finish the messages in work after the stop, and after the demo itself was killed."""


def make_endpoints(locations: Locations) -> tuple[Endpoint, Endpoint]:
    """Return `ledger`, which adds up miles and announces them, and `loyalty`, which adds up what is announced."""
    tables = None if locations.works_on_entities else DemoTables(locations.prefix, locations.store)
    ledger, loyalty = (
        Endpoint(
            name,
            store=locations.store,
            transport=locations.transport,
            metadata=tables.metadata if tables else None,
            deduplication=locations.setting,
            blobs=blobs or None,
            retry=PATIENT,
            worker=WorkerSettings(batch_size=BATCH),
        )
        for name, blobs in ((LEDGER, locations.blobs), (LOYALTY, ""))
    )
    if tables:
        register_table_handlers(tables, ledger, loyalty)
    else:
        documents = FlightDocuments(locations.prefix, locations.collection) if locations.documents else None
        register_entity_handlers(ledger, loyalty, documents)
    return ledger, loyalty


def run_endpoints(index: int, counters_path: str, locations: Locations) -> None:
    """Run both endpoints in this worker process until it is stopped or killed."""

    async def main(stop: asyncio.Event, row: CounterRow) -> None:
        steps = StepRecorder(Path(counters_path).parent, LIVE.clock)
        async with asyncio.TaskGroup() as group:
            for endpoint in make_endpoints(locations):
                group.create_task(host_of(endpoint).run(stop, counters=row, observer=steps))

    run_child(index, counters_path, main, grace=GRACE_SECONDS)
