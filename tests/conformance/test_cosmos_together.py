"""Documents of the application are saved with the store's in one batch of Cosmos DB, on the stand-in, all or none."""

from collections.abc import Mapping
from typing import Any, ClassVar

from onceonly.formats.partitions import PartitionValues, split_key
from onceonly.ports.documents import DocumentAddress
from onceonly_conformance.saves_together_suite import SavesTogetherSuite
from tests.conformance.test_cosmos_standin import InOneLevel, InTwoLevels

INEXACT = "its numbers are those of JavaScript"


class TestTogetherInOneLevel(InOneLevel, SavesTogetherSuite):
    """Documents of the store and of the application in one batch."""

    separates = True
    cannot_hold: ClassVar[Mapping[str, str]] = {"integers of 64 bits": INEXACT, "integers beyond 64 bits": INEXACT}

    def key_fields(self, key: str, address: DocumentAddress) -> Mapping[str, Any]:
        """Return the id and the partition."""
        (tenant,) = split_key(key).values
        return {"id": address.key[0], "tenantId": tenant}


class TestTogetherInTwoLevels(InTwoLevels, SavesTogetherSuite):
    """The same in a partition of two values."""

    separates = True
    partitions: ClassVar[tuple[PartitionValues, ...]] = (("acme", 7), ("acme", "7"), ("Acme", 7), ("acme", 8))
    cannot_hold: ClassVar[Mapping[str, str]] = {"integers of 64 bits": INEXACT, "integers beyond 64 bits": INEXACT}

    def key_fields(self, key: str, address: DocumentAddress) -> Mapping[str, Any]:
        """Return the id and both parts of the partition."""
        tenant, city = split_key(key).values
        return {"id": address.key[0], "tenantId": tenant, "address": {"city": city}}
