"""Hooks of mkdocs: pages of the site whose text stands outside of docs/, and links that leave it.

The same Markdown works where the repository is shown and in the site. Files outside of docs/ that the site has are in `OUTSIDE`
and in `RESULTS`. A link to any other file of the repository becomes the file's path. A link to a file that does not exist is
left as it is, and `mkdocs build --strict` fails.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/shop/README.md": "how-to/shop.md",
}
"""Pages of the site by their path in the repository."""
RESULTS = "benchmarks/results"
"""A folder whose pages the site has in the folder `results`."""
NOT_FOR_USERS = ("decisions/", "results/", "changelog.md", "contributing.md")
_LINK = re.compile(r"(!?)\[([^\]\n]+)\]\(([^)\s]+)\)")  # of a picture, too
_FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that list a folder."""
    results = [each for path, each in _outside().items() if path.startswith(RESULTS)]
    api = sorted(f"reference/{path.name}" for path in (ROOT / "docs" / "reference").glob("onceonly*.md"))
    _part(config.nav, "Results of measurements").extend(results)
    _part(config.nav, "Python API").extend(["reference/index.md", *api])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose text stands outside of docs/."""
    for source, target in _outside().items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to pages of the site, and the search list pages for users first."""
    if page.file.src_uri.startswith(NOT_FOR_USERS):
        page.meta.setdefault("search", {"boost": 0.2})
    return linked(markdown, page.file.src_uri)


def linked(markdown: str, target: str) -> str:
    """Return the text of a page with links for the site. `target` is the page's path in the site."""
    outside = _outside()
    sources = {site: source for source, site in outside.items()}
    source = sources.get(target, f"docs/{target}")

    def link(found: re.Match[str]) -> str:
        mark, words, address = found.groups()
        path, hash_sign, anchor = address.partition("#")
        if not path or ":" in path:
            return found.group()
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if there.startswith("docs/") and not there.endswith(".py"):
            site = there.removeprefix("docs/")
        elif there in outside:
            site = outside[there]
        elif (ROOT / there).exists():
            return words if words.strip("`").endswith(there) else f"{words} (`{there}`)"
        else:
            return found.group()
        return f"{mark}[{words}]({posixpath.relpath(site, posixpath.dirname(target) or '.')}{hash_sign}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def _outside() -> dict[str, str]:
    results = {f"{RESULTS}/{path.name}": f"results/{path.name}" for path in sorted((ROOT / RESULTS).glob("*.md"))}
    return OUTSIDE | results


def _part(nav: Any, name: str) -> list[str]:
    """Return the list of a part of the navigation by its name."""
    for part in nav:
        for title, content in part.items() if isinstance(part, dict) else ():
            if title == name:
                assert isinstance(content, list)  # noqa: S101 - mkdocs.yml has a list there
                return content
            if isinstance(content, list) and (found := _part(content, name)) is not None:
                return found
    return None  # type: ignore[return-value]
