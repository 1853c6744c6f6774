"""The pipelines of the pages on operators work: they are run as they stand there."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place, files_rows

import weir
from weir.cli.loading.load import load_job
from weir.core.status import JobStatus

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("OPERATORS.md", "OUTPUTS.md", "COORDINATORS.md")
TEXT = "".join((DOCS / page).read_text() for page in PAGES)

#: (customer, amount), by file.
ORDERS = [[(f"c{n % 3}", float(n)) for n in range(first, first + 10)] for first in (0, 10, 20)]


def at(amount: float) -> datetime:
    """When an order was made: one a minute, with an hour's pause after twenty."""
    minute = amount if amount < 20 else amount + 60
    return datetime(2026, 1, 1, 10, tzinfo=UTC) + timedelta(minutes=minute)


def run(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    orders: Sequence[Sequence[tuple[str, float]]] = ORDERS,
) -> weir.Job:
    """Run the pipeline below a heading over the orders until it has finished."""
    monkeypatch.syspath_prepend(str(place.directory))
    monkeypatch.setenv("PYTHONPATH", "")
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for relative in ("orders", "limits", "exports", "aside", "out"):
        path = place.directory / relative
        code = code.replace(f'"{relative}")', f'"{path}")')
        if relative in ("orders", "limits"):
            path.mkdir()
    for number, rows in enumerate(orders):
        lines = [
            json.dumps({"customer": name, "amount": amount, "at": at(amount).isoformat()})
            for name, amount in rows
        ]
        (place.directory / "orders" / f"{number:02}.json").write_text("\n".join(lines))
    limit = json.dumps({"of": "c1", "amount": 9.5})
    if "limits" in code:
        (place.directory / "limits" / "0.json").write_text(limit)
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


def test_the_operator_with_timers_reports_each_hour_at_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty orders in the first hour, and ten in the one after the next."""
    run(place, monkeypatch, "An operator with timers")
    counted = Counter(
        (customer, at(amount).replace(minute=0) + timedelta(hours=1))
        for rows in ORDERS
        for customer, amount in rows
    )
    assert files_rows(place.directory / "out") == Counter((*key, n) for key, n in counted.items())


def test_the_operator_with_a_side_output_parts_the_orders(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of thirty are unusual."""
    run(place, monkeypatch, "Side outputs")
    suspects = Counter(
        (name, "above 25") for rows in ORDERS for name, amount in rows if amount > 25
    )
    assert files_rows(place.directory / "aside") == suspects
    assert files_rows(place.directory / "out").total() == 30 - suspects.total()


def test_the_operator_with_two_inputs_marks_orders_with_limits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limit of the customer, or none if the order came first."""
    run(place, monkeypatch, "Two inputs")
    found = files_rows(place.directory / "out")
    assert Counter(row[:2] for row in found) == Counter(row for rows in ORDERS for row in rows)
    assert {limit for customer, _, limit in found if customer != "c1"} == {0.0}
    assert {limit for customer, _, limit in found if customer == "c1"} <= {0.0, 9.5}


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


@pytest.mark.slow
def test_the_coordinator_closes_its_operator_when_the_budget_is_used_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file exceeds it, and some more pass before the operator hears of that."""
    orders = [[("c0", 101.0)] for _ in range(20)]
    run(place, monkeypatch, "A coordinator", orders)
    found = files_rows(place.directory / "out")
    assert 1 <= found.total() < len(orders)
