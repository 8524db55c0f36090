"""A folder of the local file system, for blobs."""

from onceonly.systems import ArtifactService, System


def _artifacts() -> ArtifactService:
    from onceonly.adapters.folder import artifacts  # noqa: PLC0415 - only when it is opened

    return artifacts


SYSTEM = System(name="folder", artifacts=_artifacts, parts="path")
