"""A stand-in for Cosmos DB: its REST interface as far as the driver uses it here, with atomic transactional batches.

It is a fake of ours. It proves what the library does with the answers that Cosmos DB documents, and that an atomic batch is
all that the library needs. It proves nothing about the service itself. The emulator (`tests.servers.cosmos`) applies the
operations of a batch one by one. Here a batch is applied to a copy of its partition, which then takes the partition's place, or
is dropped.
"""
