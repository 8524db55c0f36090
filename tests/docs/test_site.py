"""The site: it builds without a warning, every link leads somewhere, and no page loads anything from another host."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from playwright.async_api import expect

from tests import ROOT
from tests.integrations.browser import opened_browser

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""Attributes whose address a browser loads by itself."""


class Html(HTMLParser):
    """What a page of HTML links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        """Read a page."""
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in LOADED and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])


def build(config: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(target)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.fixture(name="site", scope="module")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of this project."""
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", target)
    assert done.returncode == 0, done.stderr
    return target


def broken_links(site: Path) -> Iterator[str]:
    """Find links inside of a site to pages and anchors that it does not have."""
    pages = {path: Html(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            address, anchor = urldefrag(unquote(link))
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or path.name == "404.html":  # it may be shown at any address
                continue
            there = (path.parent / address).resolve() if address else path
            if not there.is_file() or (anchor and there in pages and anchor not in pages[there].anchors):
                yield f"{path.relative_to(site)}: {link}"


def other_hosts(site: Path) -> Iterator[str]:
    """Find what pages load from other hosts."""
    for path in site.rglob("*.html"):
        for address in Html(path.read_text(encoding="utf-8")).loads:
            if urlsplit(address).netloc:
                yield f"{path.relative_to(site)}: {address}"


def test_every_link_and_anchor_of_the_site_exists(site: Path) -> None:
    """Also those to pages whose text stands outside of docs/."""
    assert list(broken_links(site)) == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    """The site can be read without a network."""
    assert list(other_hosts(site)) == []


def test_the_search_finds_every_page(site: Path) -> None:
    """Its index is in a file that is loaded without a server, too."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {urldefrag(each["location"])[0] for each in index["docs"]}
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    assert pages - found == set()
    assert len(pages) > 80
    assert (site / "search" / "search_index.js").is_file()


def test_the_home_page_is_the_readme(site: Path) -> None:
    """Its links lead to pages of the site. Links to source files become paths."""
    home = Html((site / "index.html").read_text(encoding="utf-8"))
    assert "explanation/guarantees.html" in home.links
    assert "../src/" not in (site / "explanation" / "architecture.html").read_text(encoding="utf-8")


def test_the_checks_of_the_built_site_can_fail(tmp_path: Path) -> None:
    """A link to no page, one to no anchor, and a script from another host are found."""
    (tmp_path / "index.html").write_text(
        '<a href="no.html">a</a><a href="#no">b</a><script src="https://example.com/a.js"></script>'
    )
    assert list(broken_links(tmp_path)) == ["index.html: no.html", "index.html: #no"]
    assert list(other_hosts(tmp_path)) == ["index.html: https://example.com/a.js"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](missing.md)", "missing.md"),
        ("[a](other.md#missing)", "#missing"),
        ("![a](missing.png)", "missing.png"),
        ("fine", "unlisted.md"),
    ],
)
def test_a_mistake_in_a_page_fails_the_build(tmp_path: Path, text: str, problem: str) -> None:
    """A page that the navigation leaves out is one."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Home\n\n{text}\n")
    (docs / "other.md").write_text("# Other\n")
    if problem == "unlisted.md":
        (docs / problem).write_text("# Unlisted\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nhooks: []\nnav: [index.md, other.md]\ndocs_dir: docs\n")
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    assert problem in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)  # the browser may have to be installed first
@pytest.mark.parametrize("width", [1280, 400])
async def test_the_search_works_in_files_that_no_server_serves(site: Path, width: int) -> None:
    """Nothing is requested from a host, and no script fails."""
    async with opened_browser() as browser:
        page = await browser.new_page(viewport={"width": width, "height": 900})
        failures: list[str] = []
        requested: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        await page.goto((site / "index.html").as_uri())
        if width < 500:
            await page.locator("label[for=__search]").first.click()
        await page.get_by_role("textbox", name="Search").focus()
        await expect(page.locator(".md-search-result__meta")).to_have_text("Type to start searching", timeout=60_000)
        await page.get_by_role("textbox", name="Search").press_sequentially("retention")
        result = page.locator(".md-search-result__link").first
        await expect(result).to_be_visible(timeout=60_000)
        await result.click()
        await expect(page.locator("h1").first).to_be_visible()
        assert page.url != (site / "index.html").as_uri()
    assert failures == []
    assert [url for url in requested if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
