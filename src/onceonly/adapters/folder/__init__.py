"""A folder of the local file system, for blobs."""

from onceonly.systems import ArtifactService, System


def _artifacts() -> ArtifactService:
    from onceonly.adapters.folder import artifacts  # noqa: PLC0415 - only when it is opened

    return artifacts


def _address(url: str) -> object:
    from onceonly.adapters.folder.artifacts import folder_of  # noqa: PLC0415 - only for a URL of this system

    return folder_of(url)


SYSTEM = System(name="folder", address=_address, artifacts=_artifacts, parts="path")
