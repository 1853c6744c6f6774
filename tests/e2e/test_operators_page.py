"""The pipelines in ``docs/OPERATORS.md`` work: they are run as they stand on the page."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.e2e.live_job import LiveJob, settings
from tests.e2e.support import Place, files_rows

import weir
from weir.cli.load import load_job
from weir.core.status import JobStatus

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "OPERATORS.md").read_text()

#: (customer, amount), by file.
ORDERS = [[(f"c{n % 3}", float(n)) for n in range(first, first + 10)] for first in (0, 10, 20)]


def run(place: Place, monkeypatch: pytest.MonkeyPatch, title: str) -> weir.Job:
    """Run the pipeline below a heading over the orders until it has finished."""
    monkeypatch.syspath_prepend(str(place.directory))
    monkeypatch.setenv("PYTHONPATH", "")
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for relative in ("orders", "exports", "out"):
        path = place.directory / relative
        code = code.replace(f'"{relative}")', f'"{path}")')
        if relative != "out":
            path.mkdir()
    for number, rows in enumerate(ORDERS):
        lines = [json.dumps({"customer": name, "amount": amount}) for name, amount in rows]
        (place.directory / "orders" / f"{number}.json").write_text("\n".join(lines))
    job = load_job(str(place.write("pipeline.py", code)))
    with LiveJob(job, settings(place, interval="1 d")) as live:
        assert live.result().status is JobStatus.FINISHED
    return job


def test_the_operator_with_state_adds_up_by_customer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of the rows in a batch, the totals end at the sums."""
    run(place, monkeypatch, "An operator with state")
    sums, last = defaultdict[str, float](float), defaultdict[str, float](float)
    for customer, amount in (row for rows in ORDERS for row in rows):
        sums[customer] += amount
    found = files_rows(place.directory / "out")
    for customer, total in found:
        last[customer] = max(last[customer], total)
    assert (last, found.total()) == (sums, 30)


def test_the_operator_that_commits_by_itself_publishes_each_row_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the last batch with the final checkpoint."""
    run(place, monkeypatch, "An operator that commits by itself")
    lines = [
        line
        for path in (place.directory / "exports").glob("[!.]*.csv")
        for line in path.read_text().splitlines()
    ]
    expected = Counter(f"{name},{amount}" for rows in ORDERS for name, amount in rows)
    assert Counter(lines) == expected
    assert not list((place.directory / "exports").glob(".*"))


def test_the_coordinator_closes_its_operator_when_the_budget_is_used_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files of three are within the budget, or the first two exceed it."""
    run(place, monkeypatch, "A coordinator")
    found = files_rows(place.directory / "out")
    passed = sum(amount for _, amount in found.elements())
    assert 100.0 < passed < sum(amount for rows in ORDERS for _, amount in rows)
