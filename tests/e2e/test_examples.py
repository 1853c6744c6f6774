"""The examples do what they say, compared with what pandas makes of the same input."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import psycopg
import pytest
from deltalake import DeltaTable
from examples import sample_input
from nbclient import NotebookClient
from tests.kit.place import Place, environment_of
from tests.kit.postgres_server import running_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def orders(place: Place) -> pd.DataFrame:
    """All orders that have landed."""
    files = sorted(place.directory.glob("in/orders/*.json"))
    rows = pd.concat([pd.read_json(file, lines=True) for file in files], ignore_index=True)
    rows["at"] = pd.to_datetime(rows["at"], utc=True)
    return rows


def table(place: Place, name: str) -> pd.DataFrame:
    """The rows of a Delta table."""
    rows = DeltaTable(place.directory / "out" / name).to_pandas()
    for column in rows.select_dtypes("datetimetz"):
        rows[column] = rows[column].dt.as_unit("ns")
    return rows


def run(place: Place, example: str, **how: Any) -> None:
    """Two runs of a scheduler, the first of which is killed, with new input between them."""
    sample_input.land(place.directory / "in", 2)
    place.die_at("before-the-record", 1, "--until-idle", pipeline=EXAMPLES / example, **how)
    sample_input.land(place.directory / "in", 2)
    place.finish("--until-idle", pipeline=EXAMPLES / example, **how)


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Rows in any order, columns by name."""
    columns = list(expected.columns)
    sides = [
        frame[columns].sort_values(columns).reset_index(drop=True) for frame in (found, expected)
    ]
    assert len(sides[1]) > 0
    pd.testing.assert_frame_equal(*sides, check_dtype=False)


def test_two_tables_agree_and_a_web_service_shows_it(place: Place) -> None:
    """The revenue of the hours that are over is that of their orders."""
    run(place, "two_tables.py")
    expected = orders(place)
    assert_same(table(place, "orders"), expected)
    hours = expected.assign(start=expected["at"].dt.floor("1h"))
    until = expected["at"].max() - pd.Timedelta("8h")
    closed = hours[hours["start"] + pd.Timedelta("1h") <= until]
    revenue = closed.groupby(["start", "product"])["amount"].sum().rename("revenue").reset_index()
    assert_same(table(place, "revenue"), revenue)

    service = place.launch([sys.executable, str(EXAMPLES / "web_service.py"), "0"], environment={})
    address = service.wait_for(r"http://\S+")[0]
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with without_proxy.open(address) as answer:
        shown = json.load(answer)
    assert shown["orders"] == len(expected)
    assert shown["revenue of closed hours"] == revenue["revenue"].sum()


def test_the_newest_change_of_each_customer_is_in_postgres(place: Place) -> None:
    """By the time of the change."""
    with running_server() as server:
        run(place, "change_feed.py", environment={"WEIR_EXAMPLE_POSTGRES": server.dsn})
        with psycopg.connect(server.dsn) as connection:
            rows = connection.execute("SELECT customer, city, deleted FROM customers").fetchall()
    files = sorted(place.directory.glob("in/changes/*.json"))
    changes = pd.concat([pd.read_json(file, lines=True) for file in files], ignore_index=True)
    newest = changes.sort_values("changed").groupby("customer").last().reset_index()
    assert_same(
        pd.DataFrame(rows, columns=["customer", "city", "deleted"]),
        newest[["customer", "city", "deleted"]],
    )


def test_sessions_close_after_an_hour_without_orders(place: Place) -> None:
    """Those whose end the watermark has passed."""
    run(place, "sessions.py")
    rows = orders(place).sort_values("at")
    gap = pd.Timedelta("1h")
    number = rows.groupby("customer")["at"].diff().ge(gap).groupby(rows["customer"]).cumsum()
    sessions = (
        rows.groupby(["customer", number.rename("number")])["at"]
        .agg(begin="min", end="max", orders="count")
        .reset_index()
        .drop(columns="number")
    )
    closed = sessions[sessions["end"] + gap <= rows["at"].max() - pd.Timedelta("8h")]
    assert_same(table(place, "sessions"), closed)


def test_orders_are_joined_with_the_table_of_their_batch(place: Place) -> None:
    """Each order once, with a price that its product has had."""
    run(place, "refreshed_table.py")
    priced = table(place, "priced")
    assert_same(priced, orders(place)[["id", "product", "amount"]])
    prices = {place: {round(1 + files / 10 + place, 2) for files in (2, 4)} for place in range(3)}
    for number, product in enumerate(sample_input.PRODUCTS):
        assert set(priced[priced["product"] == product]["price"].round(2)) <= prices[number]


def test_an_order_that_comes_twice_is_there_once(place: Place) -> None:
    """Also if the second comes after the kill."""
    run(place, "deduplicated.py")
    assert_same(table(place, "orders"), orders(place).drop_duplicates("id"))


def test_late_rows_are_set_aside(place: Place) -> None:
    """Each order is in its hour or with the late ones, and each hour that is over is there once."""
    run(place, "late_rows.py")
    late = table(place, "late")
    assert 0 < len(late) < len(orders(place)) / 10
    in_time = orders(place)
    in_time = in_time[~in_time["id"].isin(late["id"])].copy()
    in_time["end"] = in_time["at"].dt.floor("1h") + pd.Timedelta("1h")
    until = orders(place)["at"].max() - pd.Timedelta("30min")
    closed = in_time[in_time["end"] <= until]
    assert_same(table(place, "by_hour"), closed.groupby("end")["amount"].sum().reset_index())


def test_the_notebook_runs_from_top_to_bottom(place: Place) -> None:
    """In a kernel of its own; its last table has what each customer has spent."""
    shutil.copy(EXAMPLES / "sample_input.py", place.directory)
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        resources={"metadata": {"path": str(place.directory)}},
        kernel_name="python3",
    )
    client.execute(env=environment_of({}))
    spent = table(place, "spent")
    expected = orders(place).groupby("customer")["amount"].sum().rename("spent").reset_index()
    assert_same(spent, expected)
    outputs = [cell.get("outputs", []) for cell in notebook.cells if cell.cell_type == "code"]
    assert "Weir" in str(outputs[1]) or "notebook" in str(outputs[1])
    assert str(expected["spent"].max()) in str(outputs[2])
    assert "apple" in str(outputs[3])
