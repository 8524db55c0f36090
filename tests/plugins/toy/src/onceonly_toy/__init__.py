"""toy:///path/of/file, a system for onceonly: documents and artifacts in one file."""

from onceonly.systems import ArtifactService, DocumentService, Driver, System


def _documents() -> DocumentService:
    from onceonly_toy import file  # noqa: PLC0415 - imports the driver

    return file


def _artifacts() -> ArtifactService:
    from onceonly_toy import file  # noqa: PLC0415 - imports the driver

    return file


SYSTEM = System(
    name="toy file",
    drivers={"": Driver(("sqlite3",), requirement="onceonly-toy")},
    documents=_documents,
    artifacts=_artifacts,
    drops_expired=False,
)
