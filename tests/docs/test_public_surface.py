"""The public names with their signatures, as a stored list: a change of the public surface is a line in a diff.

`ONCEONLY_WRITE_SURFACE=1 pytest tests/docs/test_public_surface.py` writes the list anew.
"""

import os
import re
import runpy

from tests import ROOT

LIST = ROOT / "tests" / "docs" / "public_surface.txt"
GENERATE = runpy.run_path(str(ROOT / "docs" / "generate" / "__main__.py"))
CODE = re.compile(r"^```python\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def surface() -> list[str]:
    """Return a line for each public function, class and constant: its module, its name, and what it takes and returns."""
    return [
        f"{module}: {' '.join(code.split())}"
        for module, page in sorted(GENERATE["_references"]())
        for code in CODE.findall(page)
        if code.startswith(("def ", "async def ", "class ")) or re.match(r"[A-Za-z_]+( = |\(|$)", code)
    ]


def test_the_public_surface_is_the_stored_one() -> None:
    """A difference may be right: then write the list anew, and name the change in the changelog."""
    found = surface()
    if os.environ.get("ONCEONLY_WRITE_SURFACE"):
        LIST.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    stored = LIST.read_text(encoding="utf-8").splitlines()
    gone, new = sorted({*stored} - {*found}), sorted({*found} - {*stored})
    assert (gone, new) == ([], [])
    assert len(found) > len(GENERATE["PUBLIC"])
