"""A folder of the local file system, for blobs."""

from onceonly.systems import System, imported

_ARTIFACTS = "onceonly.adapters.folder.artifacts"
SYSTEM = System(name="folder", address=imported(f"{_ARTIFACTS}:folder_of"), artifacts=imported(_ARTIFACTS), parts="path")
