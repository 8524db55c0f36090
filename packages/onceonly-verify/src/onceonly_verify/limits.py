"""What the checks do not cover. The page on verification and the summary of a run contain this list."""

NOT_COVERED = (
    "SQL, drivers and brokers. The checks use adapters in memory.",
    "Real time and drift of clocks. Time moves in steps of half an hour, and clocks differ by one step at most.",
    "Time at several endpoints, and the age at which relays take records. Worlds with time have one endpoint and no relay.",
    "Larger worlds: more copies, workers, endpoints and faults at once than a check names.",
    "Several batches in one process. Each loop of a worker dies alone here, and a run alone has no other unit beside it.",
    "The runtime around the algorithms: when relays, sweepers and janitors wake up, leader election and shutdown.",
    "Handlers. A handler is one step. Its locks, its isolation and its own side effects are not checked.",
    "Attempts that take longer than the age from which a sweeper treats them as dead. Their artifacts may stay.",
    "Writes that arrive later than `CLOCK_MARGIN_MS` allows together with the difference of two clocks.",
    "The margin of tombstones of HTTP requests, which `endpoint/http_app.py` chooses. The checks use `CLOCK_MARGIN_MS`.",
    "A message on documents that is given up, then handled all the same, and not sent on. The guarantees name this exception.",
    "The expiry of documents of messages without an entity, and waits for locks. No check has a clock there.",
)
