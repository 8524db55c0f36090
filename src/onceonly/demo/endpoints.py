"""The two endpoints of the demo, on tables or on entities: what the store has."""

from onceonly import Endpoint, Retry, WorkerSettings
from onceonly.demo.books import Books, keep_books
from onceonly.demo.flights import LEDGER, LOYALTY
from onceonly.demo.legs import keep_legs
from onceonly.demo.place import DemoUrls

BATCH = 25  # what a killed process held has to come again, so a demo that kills takes less than the default
# A message that was held at many kills is nobody's poison here: it is neither given up nor put off for minutes.
PATIENT = Retry(delayed=100, first_delay=1.0, factor=1.0)


def make(place: DemoUrls) -> tuple[Endpoint, Endpoint]:
    """Make `ledger`, which adds up miles and announces them, and `loyalty`, which adds up what is announced."""
    books = None if place.works_on_entities else Books(place.prefix, place.store)
    ledger, loyalty = (
        Endpoint(
            name,
            store=place.store,
            transport=place.transport,
            metadata=books.metadata if books else None,
            deduplication=place.setting,
            blobs=blobs or None,
            retry=PATIENT,
            worker=WorkerSettings(batch_size=BATCH),
        )
        for name, blobs in ((LEDGER, place.blobs), (LOYALTY, ""))
    )
    if books:
        keep_books(books, ledger, loyalty)
    else:
        keep_legs(ledger, loyalty)
    return ledger, loyalty
