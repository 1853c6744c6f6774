"""The documents agree with the code, where a test can check that."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_state_diagrams_are_those_of_the_tables_that_run() -> None:
    """The page is up to date; run ``python scripts/diagrams.py`` after a table has changed."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()

    assert load_script("diagrams").drawn(page) == page


def test_the_configuration_page_is_that_of_the_table_that_is_read() -> None:
    """The page is up to date; run ``python scripts/configuration.py`` after a key has changed."""
    assert (ROOT / "docs" / "CONFIGURATION.md").read_text() == load_script("configuration").page()


def test_the_rest_pages_are_those_of_the_schema_that_is_served() -> None:
    """They are up to date; run ``python scripts/rest_api.py`` after the schema has changed."""
    for name, text in load_script("rest_api").pages().items():
        assert (ROOT / "docs" / name).read_text() == text


def test_the_page_of_metrics_is_that_of_the_table_that_is_read() -> None:
    """The page is up to date; run ``python scripts/metrics.py`` after a metric has changed."""
    assert (ROOT / "docs" / "METRICS.md").read_text() == load_script("metrics").page()


def test_the_dashboard_is_the_one_that_its_script_writes() -> None:
    """The file is up to date; run ``python scripts/grafana.py`` after a panel has changed."""
    assert (ROOT / "monitoring" / "grafana.json").read_text() == load_script("grafana").text()


def test_lines_of_documents_fit_into_100_columns() -> None:
    """Tables may be wider, since a row is a line."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert pages
    wide = [
        f"{page.name}:{number}"
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        if len(line) > 100 and not line.startswith("|")
    ]
    assert wide == []


def test_every_requirement_and_rule_that_is_cited_is_written_down() -> None:
    """Docstrings and tests cite requirements and rules by number; docs/PROTOCOL.md has each of them
    once."""
    page = (ROOT / "docs" / "PROTOCOL.md").read_text()
    numbers = re.findall(r"^- ([A-GP]\d+)\. ", page.replace("**", ""), re.MULTILINE)
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    cited = {
        number
        for path in files
        for run in re.findall(
            r"(?:MISSION|PROTOCOL)((?: |, | and | to )?(?:[A-GP]\d+(?:, | and | to )?)+)",
            path.read_text(),
        )
        for number in re.findall(r"[A-GP]\d+", run)
    }
    assert len(numbers) == len(set(numbers))
    assert cited <= set(numbers)
    assert len(cited) > 60, "citations are found"


def test_every_dependency_earns_its_place_in_one_line() -> None:
    """Each library that the project declares is explained in docs/ARCHITECTURE.md."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(one for extra in extras for one in extra)]
    names = {re.split(r"[\[>=]", dependency)[0].strip() for dependency in declared}
    libraries = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("## Libraries")[1]

    assert {name for name in names if name not in libraries} == set()


def vertices_of(*code: str) -> list[tuple[str, tuple[str, ...]]]:
    """The queries of the job that a page's code makes, with their inputs."""
    from weir.job import definition_of

    names: dict[str, Any] = {}
    for part in code:
        exec(compile(part, "page", "exec"), names)
    return [(vertex.name, vertex.inputs) for vertex in definition_of(names["job"]).vertices()]


def test_the_pipeline_of_the_readme_is_two_queries_with_a_channel() -> None:
    """It builds as printed; a slow test runs it (``tests/e2e/test_readme.py``)."""
    page = (ROOT / "README.md").read_text()
    pipeline, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    assert vertices_of(pipeline) == [("rate", ()), ("count", ("rate",))]


def test_the_page_of_pipelines_is_one_pipeline() -> None:
    """Its code builds as printed, each part after those before it."""
    page = (ROOT / "docs" / "PIPELINES.md").read_text()
    parts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    assert vertices_of(parts[0]) == [("clean", ()), ("per_minute", ("clean",))]
    assert vertices_of(*parts) == [
        ("clean", ()),
        ("per_minute", ("clean",)),
        ("score", ("clean",)),
        ("payments", ()),
    ]


def test_the_unit_of_the_deployment_page_leaves_the_end_to_the_driver() -> None:
    """SIGTERM goes to the driver before its children are killed, and its exit code for that is no
    failure, so that a unit which is stopped does not start the job again."""
    from configparser import ConfigParser

    page = (ROOT / "docs" / "DEPLOYMENT.md").read_text()
    (text,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    unit = ConfigParser()
    unit.read_string(text)
    service = unit["Service"]

    assert service["KillSignal"] == "SIGTERM"
    assert service["KillMode"] == "mixed"
    assert service["SuccessExitStatus"] == "143"
    assert service["Restart"] == "on-failure"


def test_links_between_the_documents_lead_somewhere() -> None:
    """Each relative link names a file, and a heading of it if it names one."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
            name, _, heading = target.partition("#")
            file = (page.parent / name) if name else page
            if not file.exists() or (heading and heading not in anchors(file.read_text())):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def anchors(text: str) -> set[str]:
    """The names by which links find a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
