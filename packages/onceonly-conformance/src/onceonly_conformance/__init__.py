"""The conformance suites for authors of systems. Each has a rule for every requirement of one port.

Bind a suite by a test class that derives from it and overrides its `open_...` method. Run it with `pytest -o
asyncio_mode=auto`. docs/how-to/systems.md lists the suites that a system needs. Suites for SQL dialects are in
`onceonly_conformance.sql`.
"""

from onceonly_conformance.artifact_suite import ArtifactStoreSubject, ArtifactStoreSuite
from onceonly_conformance.broker_suite import BrokerSubject, BrokerSuite
from onceonly_conformance.destination_suite import DestinationSubject, DestinationSuite
from onceonly_conformance.documents_subject import DocumentsSubject, Moment
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.fault_suite import FaultSuite, FaultySubject
from onceonly_conformance.on_documents import (
    DocumentDedupSuite,
    DocumentProjectionSuite,
    DocumentTokenSuite,
    DocumentTransactionSuite,
)
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.projection_suite import ProjectionSubject, ProjectionSuite
from onceonly_conformance.saves_together_suite import SavesTogetherSuite
from onceonly_conformance.suite import Suite
from onceonly_conformance.transport_suite import TransportSubject, TransportSuite

__all__ = [
    "ArtifactStoreSubject",
    "ArtifactStoreSuite",
    "BrokerSubject",
    "BrokerSuite",
    "DestinationSubject",
    "DestinationSuite",
    "DocumentDedupSuite",
    "DocumentProjectionSuite",
    "DocumentTokenSuite",
    "DocumentTransactionSuite",
    "DocumentsSubject",
    "DocumentsSuite",
    "FaultSuite",
    "FaultySubject",
    "Moment",
    "PendingListSuite",
    "ProjectionSubject",
    "ProjectionSuite",
    "SavesTogetherSuite",
    "Suite",
    "TransportSubject",
    "TransportSuite",
]
