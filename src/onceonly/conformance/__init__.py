"""The conformance suites for authors of systems. Each has a rule for every requirement of one port.

Bind a suite by a test class that derives from it and overrides its `open_...` method. Run it with `pytest -o
asyncio_mode=auto`. docs/systems.md lists the suites that a system needs. Suites for SQL dialects are in
`onceonly.conformance.sql`.
"""

from onceonly.conformance.artifact_suite import ArtifactStoreSubject, ArtifactStoreSuite
from onceonly.conformance.broker_suite import BrokerSubject, BrokerSuite
from onceonly.conformance.documents_subject import DocumentsSubject, Moment
from onceonly.conformance.documents_suite import DocumentsSuite
from onceonly.conformance.fault_suite import FaultSuite, FaultySubject
from onceonly.conformance.on_documents import DocumentDedupSuite, DocumentTokenSuite, DocumentTransactionSuite
from onceonly.conformance.suite import Suite
from onceonly.conformance.transport_suite import TransportSubject, TransportSuite

__all__ = [
    "ArtifactStoreSubject",
    "ArtifactStoreSuite",
    "BrokerSubject",
    "BrokerSuite",
    "DocumentDedupSuite",
    "DocumentTokenSuite",
    "DocumentTransactionSuite",
    "DocumentsSubject",
    "DocumentsSuite",
    "FaultSuite",
    "FaultySubject",
    "Moment",
    "Suite",
    "TransportSubject",
    "TransportSuite",
]
