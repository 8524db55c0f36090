"""toy:///path/of/file, a system for onceonly: documents and artifacts in one file."""

from onceonly.systems import Driver, System, imported

_FILE = imported("onceonly_toy.file")
SYSTEM = System(
    name="toy file",
    drivers={"": Driver(("sqlite3",), requirement="onceonly-toy")},
    documents=_FILE,
    artifacts=_FILE,
    drops_expired=False,
)
