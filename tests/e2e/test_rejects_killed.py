"""Each form of step that may set rows aside is exact though four drivers die (docs/REJECTS.md).

``rejecting_forms.py`` has the forms. Those of one job are branches with tables of their own, and
die together: four times, each time with rows of each form that no table has yet, which is checked.
The tables are compared with a plain Python computation over the same rows. ``test_rejects.py`` has
a chain of forms.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.e2e import rejecting_forms
from tests.e2e.rejecting_forms import FORMS, KEYS, quotient
from tests.kit.place import Place, files_rows

from weir.demo.landing import write_atomically

PIPELINE = Path(rejecting_forms.__file__)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.kill,
    pytest.mark.timeout(900),
]

#: The forms of each job.
JOBS = {
    "functions": ("expressions", "python_udf", "python_udf_in_arrow", "pandas_udf", "arrow_udf"),
    "maps and operators": (
        *("map_in_pandas", "map_in_arrow", "stateless_operator", "keyed_operator", "expect"),
    ),
    "one bad row in 10,000": tuple(name for name in FORMS if name.startswith("one_")),
}


@dataclass(frozen=True)
class Input:
    """What one directory has."""

    #: Rows of a file, which are a batch.
    size: int
    #: Files that each driver gets.
    files: int
    #: One row in so many is bad.
    every: int


INPUTS = {"in": Input(500, 4, 100), "large": Input(10_000, 2, 10_000)}


@dataclass(frozen=True)
class Row:
    """A row of the input."""

    id: int
    text: str
    parts: int

    @property
    def error(self) -> int | None:
        """Which of a form's two errors it raises, if any."""
        return 0 if self.text == "none" else 1 if self.parts == 0 else None


def row(number: int, every: int) -> Row:
    """The row of this number: bad in one of two ways in turn, if it is bad."""
    error = number // every % 2 if number % every == 0 else None
    return Row(
        id=number,
        text="none" if error == 0 else str(7 * number),
        parts=0 if error == 1 else number % 5 + 1,
    )


@dataclass
class KilledJob:
    """A job of some forms: its input, its tables, and what they lacked when its drivers died."""

    place: Place
    forms: tuple[str, ...]
    #: All rows so far, by directory.
    landed: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in INPUTS})
    #: For each kill, by form: how many rows were in neither table.
    lacked: list[dict[str, int]] = field(default_factory=list)

    def land(self) -> None:
        """Add the files for one driver."""
        for directory in {FORMS[form].reads for form in self.forms}:
            of, rows = INPUTS[directory], self.landed[directory]
            (self.place.directory / directory).mkdir(exist_ok=True)
            for _ in range(of.files):
                begin = len(rows)
                rows += [row(number, of.every) for number in range(begin, begin + of.size)]
                write_atomically(
                    pa.Table.from_pylist([asdict(one) for one in rows[begin:]]),
                    self.place.directory / directory / f"{begin:06}.parquet",
                    # Spark reads files in the order of these times.
                    mtime_s=1_700_000_000 + begin,
                )

    def die_at(self, point: str, nth: int) -> None:
        """Land more, and run until SIGKILL."""
        self.land()
        self.place.die_at(point, nth, pipeline=PIPELINE, environment=self._environment("unbounded"))
        self.lacked.append(
            {
                form: len(self.rows(form)) - len(self.good(form)) - len(self.bad(form))
                for form in self.forms
            }
        )

    def finish(self) -> None:
        """Land more, and run to the end of the input."""
        self.land()
        run = self.place.finish(pipeline=PIPELINE, environment=self._environment("bounded"))
        assert "has finished" in run.output

    def rows(self, form: str) -> list[Row]:
        """The input of a form."""
        return self.landed[FORMS[form].reads]

    def good(self, form: str) -> list[tuple[Any, ...]]:
        """What is in its table."""
        return list(files_rows(self.place.directory / "out" / form).elements())

    def bad(self, form: str) -> list[dict[str, Any]]:
        """What is in its table of bad rows."""
        try:
            table = DeltaTable(str(self.place.directory / "out" / f"{form}_bad"))
        except TableNotFoundError:
            return []
        rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
        return rows

    def _environment(self, numbers: str) -> dict[str, str]:
        return {"FORMS": ",".join(self.forms), "NUMBERS": numbers}


@pytest.fixture(scope="module")
def killed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KilledJob]:
    """The job of this name, killed four times and then finished."""
    job = KilledJob(Place(tmp_path_factory.mktemp("killed")), JOBS[request.param])
    try:
        # While some forms are at their second batch.
        job.die_at("before-rows-are-set-aside", len(job.forms) + 1)
        job.die_at("before-the-record", 1)
        job.die_at("within-one-commit", 1)
        job.die_at("after-a-recommit", 1)
        job.finish()
        yield job
    finally:
        job.place.clear()


@pytest.mark.parametrize(
    ("killed", "form"),
    [(job, form) for job, forms in JOBS.items() for form in forms],
    indirect=["killed"],
    scope="module",
)
def test_each_row_is_in_one_table_or_the_other_though_four_drivers_die(
    killed: KilledJob, form: str
) -> None:
    """10,000 rows with 100 bad ones, or 100,000 with 10: each once, with the reason if it is bad;
    and keyed state is as if the bad ones had never come."""
    rows = killed.rows(form)
    good = {one.id: quotient(one.text, one.parts) for one in rows if one.error is None}
    bad = {one.id: one for one in rows if one.error is not None}
    assert (len(rows), len(bad)) in ((10_000, 100), (100_000, 10))
    assert [lacked[form] > 0 for lacked in killed.lacked] == 4 * [True]

    found = killed.good(form)
    assert Counter(one[:2] for one in found) == Counter(good.items())
    aside = [(json.loads(one["row"]), one["error"]) for one in killed.bad(form)]
    assert Counter(given["id"] for given, _ in aside) == Counter(bad.keys())
    for given, error in aside:
        one = bad[given["id"]]
        # A step before the operator adds the key.
        assert given == asdict(one) | {name: given[name] for name in given.keys() & {"key"}}
        assert FORMS[form].errors[one.error or 0] in error

    if form == "keyed_operator":
        assert_counted(found, good)


def assert_counted(found: list[tuple[int, ...]], good: dict[int, int]) -> None:
    """Check what the operator has counted and summed by key."""
    keys = Counter(number % KEYS for number in good)
    nths = Counter((number % KEYS, nth) for number, _, nth, _ in found)
    assert nths == Counter((key, nth) for key in keys for nth in range(1, keys[key] + 1))
    sums = {
        key: sum(value for number, value in good.items() if number % KEYS == key) for key in keys
    }
    last = {number % KEYS: total for number, _, nth, total in found if nth == keys[number % KEYS]}
    assert last == sums
