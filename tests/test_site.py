"""The documentation site: what it is made of, and how a browser shows it."""

from __future__ import annotations

import functools
import importlib
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from scripts import docs_site
from scripts.docs_docstrings import markdown
from tests.kit.browser import chromium

import weir

ROOT = Path(__file__).resolve().parent.parent
PAGES = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    """The build would say so, too, but takes longer."""
    outside = [place for place in docs_site.PLACES.values() if place.endswith(".md")]
    reference = [f"api/{name}.md" for name in docs_site.API]
    inside = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(PAGES) == sorted([*inside, *outside, *reference])


def test_the_reference_has_every_public_name_once() -> None:
    """Those of ``weir``, and those of its public modules."""
    modules = [name for name in weir.__all__ if name[0].islower() and "_" not in name]
    modules = [name for name in modules if name not in ("connect", "expect")]
    public = [f"weir.{name}" for name in weir.__all__ if name not in modules]
    for module in modules:
        names = getattr(importlib.import_module(f"weir.{module}"), "__all__", None)
        public += [f"weir.{module}"] if names is None else [f"weir.{module}.{one}" for one in names]
    shown = [name.removesuffix("()") for _, names in docs_site.API.values() for name in names]
    assert sorted(shown) == sorted(public)


@pytest.mark.parametrize("page", sorted(set(PAGES) - docs_site.INSIDE))
def test_a_users_page_names_no_file_that_a_wheel_lacks(page: str) -> None:
    """Links may lead to what the site has, which the build checks."""
    source = {place: source for source, place in docs_site.PLACES.items()}.get(page, f"docs/{page}")
    if page.startswith("api/") or source.endswith(".py"):
        return
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", (ROOT / source).read_text(), flags=re.DOTALL)
    assert re.findall(r"\b(?:tests|scripts|benchmarks|monitoring|examples)/[\w/.]+", text) == []


def test_links_become_those_of_the_site() -> None:
    """From any page to any other; what the site lacks stays, and fails the build."""
    text = "[a](docs/SINKS.md#iceberg) [b](CONTRIBUTING.md) [c](https://x/y.md) [d](#e)"
    assert docs_site.with_links_of_site(text, "index.md") == (
        "[a](SINKS.md#iceberg) [b](CONTRIBUTING.md) [c](https://x/y.md) [d](#e)"
    )
    text = "[a](../README.md) [b](REST.md) [c](../examples/flights.py) [d](../tests/conftest.py)"
    assert docs_site.with_links_of_site(text, "METRICS.md") == (
        "[a](index.md) [b](REST.md) [c](examples/flights.md) [d](../tests/conftest.py)"
    )


def test_code_in_a_numbered_item_is_indented_further() -> None:
    """Code elsewhere is as it was, whatever it looks like."""
    item = "1. A\n\n   ```\n   code\n\n     more\n   ```\n\nB\n\n```\n1. x\n   y\n```\n"
    assert docs_site.indented(item) == (
        "\n1. A\n\n    ```\n    code\n\n      more\n    ```\n\nB\n\n```\n1. x\n   y\n```\n"
    )


def test_docstrings_become_markdown() -> None:
    """Literal blocks, rules, pages, and requirements, which are left out."""
    text = (
        "A cut (MISSION G1) by PROTOCOL P15, see the documentation's\npage SINKS::\n\n    x = 1\n"
    )
    assert markdown(text) == (
        "A cut by [PROTOCOL P15](../PROTOCOL.md), see the page [Sinks](../SINKS.md):\n\n"
        "```python\nx = 1\n```"
    )
    assert markdown("::\n\n    a --> b") == "```text\na --> b\n```"


def test_addresses_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    """Files, anchors, and what a browser would fetch from another host."""
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/b.html#c">1</a> <a href="a/b.html#d">2</a> <a href="c.html">3</a>'
        '<a href="https://other.example/">4</a> <script src="//other.example/x.js"></script>'
        '<a href="mailto:x">5</a> <a href="#e">6</a>'
    )
    (tmp_path / "a" / "b.html").write_text('<h1 id="c"></h1> <a href="..">7</a> <a href="/">8</a>')
    assert list(docs_site.complaints(tmp_path)) == [
        "index.html: a/b.html#d: no such anchor",
        "index.html: c.html: no such file",
        "index.html: //other.example/x.js is on another host",
        "index.html: #e: no such anchor",
    ]


@pytest.fixture
def site() -> Iterator[str]:
    """The address of the site, as it is now."""
    docs_site.main()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(docs_site.SITE))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_readers_browser_draws_diagrams_searches_and_asks_no_other_host(site: str) -> None:
    """The start page, the page with most diagrams, a search, and a page of the reference."""
    asked: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{site}/ARCHITECTURE.html")
        diagrams = (ROOT / "docs" / "ARCHITECTURE.md").read_text().count("```mermaid")
        page.wait_for_function(f"document.querySelectorAll('div.mermaid').length == {diagrams}")
        page.goto(f"{site}/api/jobs.html")
        assert page.locator("#weir\\.Job\\.run").is_visible()
        page.goto(f"{site}/index.html")
        page.keyboard.press("/")
        page.keyboard.type("savepoint drain")
        page.locator(".md-search-result__link").first.wait_for()
        assert page.locator(".md-search-result__link[href*='STOPPING']").count() > 0
    assert [one for one in asked if not one.startswith((f"{site}/", "data:", "blob:"))] == []
