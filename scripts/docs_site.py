"""Builds the documentation site into ``build/site``: ``python -m scripts.docs_site``.

The site is made of the same Markdown that a forge shows. ``assemble`` writes what the generator
reads to ``build/docs``:

1. The pages of ``docs/``, and pages from outside of it: ``README.md`` is the start page, each
   example a page with its code, and ``API`` below lists the pages of the reference.
2. Files that readers download: the alerts and the dashboard.
3. Links between all these, which are those of the repository, become those of the site. A link to a
   file that the site lacks stays as it is, and fails the strict build.
4. Code in the items of a list is indented by four columns, where a forge accepts three.

``mkdocs.yml`` has the navigation; a page that it lacks fails the build, too. Then ``complaints``
reads the pages that were built: each address in them leads to a file and an anchor of the site, and
nothing but a link that a reader follows leads to another host.
"""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from scripts.docs_docstrings import markdown

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"

#: Where the site has what lies outside of docs/.
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    **{
        f"examples/{path.name}": f"examples/{path.stem}.md"
        for form in ("py", "ipynb")
        for path in ROOT.glob(f"examples/*.{form}")
    },
    "deploy/compose/compose.yaml": "deploy/compose/compose.yaml",
    "monitoring/alerts.yml": "monitoring/alerts.yml",
    "monitoring/grafana.json": "monitoring/grafana.json",
}

#: The pages of the reference: an introduction, and what is documented. Of a name that ends with
#: ``()``, only how it is made: the rest is the contract of its base class, which has it.
API = {
    "jobs": (
        "[Pipelines](../PIPELINES.md) shows how to use them.",
        [
            *("weir.Job", "weir.Stream", "weir.JobHandle", "weir.JobProgress"),
            *("weir.QueryProgress", "weir.RunOptions", "weir.JobResult"),
            *("weir.CheckpointListener", "weir.MasterHook", "weir.expect"),
        ],
    ),
    "sinks": (
        "[Sinks](../SINKS.md) says which to use. Your own derive from `Sink`.",
        [
            *("weir.sinks.DeltaTable()", "weir.sinks.IcebergTable()", "weir.sinks.PostgresTable()"),
            *("weir.sinks.KafkaTopic()", "weir.sinks.Files()", "weir.sinks.ForeachEpoch()"),
            *("weir.sinks.ForeachBatch()", "weir.sinks.Foreach()", "weir.sinks.SinkInfo"),
            *("weir.sinks.BatchInfo", "weir.sinks.CommitInfo", "weir.sinks.Sink"),
            *("weir.sinks.SinkContext", "weir.sinks.Batch"),
        ],
    ),
    "sources": (
        "[Sources](../SOURCES.md) builds one from nothing.",
        [
            *("weir.sources.FileSource()", "weir.sources.kafka", "weir.sources.KafkaSource()"),
            *("weir.sources.KafkaTopic()", "weir.sources.Watermarks", "weir.sources.Source"),
            *("weir.sources.SourceSplit", "weir.sources.SplitEnumerator"),
            *("weir.sources.SplitEnumeratorContext", "weir.sources.SplitReader"),
            *("weir.sources.Fetched", "weir.sources.SplitRecords", "weir.sources.SourceReader"),
            *("weir.sources.ExternallyInducedSourceReader", "weir.sources.SourceReaderContext"),
            *("weir.sources.SplitSerializer", "weir.sources.encode_splits"),
            "weir.sources.decode_splits",
        ],
    ),
    "operators": (
        "[Operators](../OPERATORS.md) builds some from nothing.",
        [
            *("weir.operators.Operator", "weir.operators.RulesOperator()"),
            *("weir.operators.PandasOperator", "weir.operators.CoOperator"),
            *("weir.operators.ListCheckpointed", "weir.operators.OperatorContext"),
            *("weir.operators.SnapshotContext", "weir.operators.TimeDomain"),
            "weir.operators.TtlUpdate",
        ],
    ),
    "coordinators": (
        "[Coordinators](../COORDINATORS.md) builds one from nothing.",
        [
            *("weir.coordinators.BroadcastRules()", "weir.coordinators.OperatorCoordinator"),
            *("weir.coordinators.CoordinatorContext", "weir.coordinators.SubtaskGateway"),
        ],
    ),
    "readers": (
        "[Read](../READING.md) says which to use.",
        [
            *("weir.read_consistent", "weir.ConsistentCut", "weir.read_savepoint"),
            *("weir.Savepoint", "weir.SavedOperator", "weir.SavedOperatorState"),
        ],
    ),
    "client": (
        "What the commands do, from Python. [REST](../REST.md) has the requests.",
        ["weir.connect", "weir.JobClient"],
    ),
    "errors": ("Each message is a sentence that says what to do.", ["weir.errors"]),
}

#: Pages that a search shows after others with the same words.
INSIDE = {
    *("ARCHITECTURE.md", "CHECKPOINT.md", "PROTOCOL.md", "CONTRIBUTING.md", "REST_MESSAGES.md"),
    *("PERFORMANCE.md", "THROUGHPUT.md", "START_TIMES.md"),
}

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^ *(```|~~~)")


def assemble(target: Path) -> None:
    """Write the Markdown and the files of the site."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    for source, place in PLACES.items():
        content = (ROOT / source).read_text()
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".py"):
            content = _example(source, content)
        elif source.endswith(".ipynb"):
            content = _notebook(content)
        (target / place).write_text(content)
    for page in target.rglob("*.md"):
        place = str(page.relative_to(target))
        text = indented(with_links_of_site(page.read_text(), place))
        page.write_text(_settings(place, text) + text)
    (target / "api").mkdir()
    for name, (introduction, objects) in API.items():
        directives = "\n\n".join(map(_directive, objects))
        text = f"# {name.capitalize()}\n\n{introduction}\n\n{directives}\n"
        (target / "api" / f"{name}.md").write_text(text)


def _settings(place: str, text: str) -> str:
    """What the generator reads above a page: its rank in a search, and no empty contents."""
    settings = ["search:", "  boost: 0.2"] if place in INSIDE else []
    if not re.search(r"^## ", text, re.MULTILINE):
        settings += ["hide:", "  - toc"]
    return "\n".join(["---", *settings, "---", ""]) if settings else ""


def _example(source: str, code: str) -> str:
    """A page with an example's docstring and its code."""
    tree = ast.parse(code)
    text = markdown(ast.get_docstring(tree) or "")
    after = "".join(code.splitlines(keepends=True)[tree.body[0].end_lineno :]).lstrip("\n")
    return f"# {posixpath.basename(source)}\n\n{text}\n\n```python\n{after}```\n"


def _notebook(text: str) -> str:
    """A page with a notebook's text and code."""
    cells = [
        f"```python\n{''.join(cell['source'])}\n```"
        if cell["cell_type"] == "code"
        else "".join(cell["source"])
        for cell in json.loads(text)["cells"]
    ]
    return "\n\n".join(cells) + "\n"


def _directive(name: str) -> str:
    """What mkdocstrings replaces by the documentation of an object."""
    if name.endswith("()"):
        options = "    options:\n      members: false\n      show_bases: false"
        return f"::: {name.removesuffix('()')}\n{options}"
    return f"::: {name}"


def with_links_of_site(markdown: str, page: str) -> str:
    """The text of a page (by its place in the site) with the links of the site."""
    sources = {place: source for source, place in PLACES.items()}
    source = sources.get(page, f"docs/{page}")

    def replaced(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        place = PLACES.get(target)
        if place is None and target.startswith("docs/"):
            place = target.removeprefix("docs/")
        if not link[1] or place is None:
            return link[0]
        return f"]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{link[2] or ''})"

    return _LINK.sub(replaced, markdown)


def indented(markdown: str) -> str:
    """The text with the contents of numbered items indented by four columns instead of three."""
    lines, inside, fenced = [], False, False
    for line in markdown.splitlines():
        if _FENCE.match(line) and not (inside and line.startswith("   ")):
            fenced = not fenced
        if not fenced and re.match(r"\d\. ", line):
            inside = True
            # Without it, the item would belong to a paragraph before it.
            lines.append("")
        elif inside and line and not line.startswith("   "):
            inside = False
        lines.append(f" {line}" if inside and line.startswith("   ") else line)
    return "\n".join(lines) + "\n"


class _Page(HTMLParser):
    """What a page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        #: Tags and addresses.
        self.addresses: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.addresses.append((tag, value))
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def complaints(site: Path) -> Iterator[str]:
    """Addresses on a site's pages that lead nowhere, or for which a browser asks another host."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for tag, address in page.addresses:
            shown = f"{path.relative_to(site)}: {address}"
            if re.match(r"(https?:)?//", address):
                if tag != "a":
                    yield f"{shown} is on another host"
                continue
            if re.match(r"[a-z]+:", address):
                continue
            name, _, anchor = unquote(address).partition("#")
            # The page for an address that is not there has addresses from the site's root.
            base = site if name.startswith("/") else path.parent
            target = Path(os.path.normpath(base / name.lstrip("/"))) if name else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{shown}: no such file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{shown}: no such anchor"


def main() -> None:
    """Build the site and check it; exit with 1 if anything is wrong."""
    assemble(SOURCES)
    shutil.rmtree(SITE, ignore_errors=True)
    # Without advertisements for other generators.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict"]
    built = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if built.returncode:
        raise SystemExit(built.returncode)
    found = list(complaints(SITE))
    if found:
        raise SystemExit("\n".join(found))
    pages = len(list(SITE.rglob("*.html")))
    print(f"{pages} pages: python -m http.server -d {SITE.relative_to(ROOT)} serves them")


if __name__ == "__main__":
    main()
