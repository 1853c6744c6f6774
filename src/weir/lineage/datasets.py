"""What a source reads and a sink writes, named as OpenLineage names datasets.

A *namespace* is the system that holds the dataset, a *name* is unique in it::

    file                    /data/orders
    s3://bucket             orders/2026
    hdfs://nn:8020          /orders
    kafka://broker:9092     orders
    postgres://db:5432      shop.public.orders

So the outputs of one job are found as the inputs of another, whatever tool runs that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.core.types import OperatorId

#: In these schemes the name is a key, which has no slash in front.
_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "abfs"} | {
    "abfss": "abfss",
    "wasb": "wasb",
    "wasbs": "wasbs",
}
_KAFKA_PORT = "9092"


@dataclass(frozen=True, kw_only=True, order=True)
class Dataset:
    """A dataset's name."""

    namespace: str
    name: str


@dataclass(frozen=True, kw_only=True)
class StepDatasets:
    """What one source reads or one sink writes."""

    step: OperatorId
    #: Empty if it is not known.
    datasets: tuple[Dataset, ...] = ()
    #: The columns of its rows: names, and types in the engine's spelling.
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobDatasets:
    """What a job reads and writes."""

    inputs: tuple[StepDatasets, ...] = ()
    outputs: tuple[StepDatasets, ...] = ()


def file_dataset(path: str) -> Dataset:
    """The dataset of files below a path, which is plain or a URI (``storage/paths.py``)."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return Dataset(namespace="file", name=path)
    authority, _, below = rest.partition("/")
    if scheme in _OBJECT_STORES:
        return Dataset(namespace=f"{_OBJECT_STORES[scheme]}://{authority}", name=below or "/")
    return Dataset(namespace=f"{scheme}://{authority}", name=f"/{below}")


def kafka_datasets(servers: str, topics: str) -> tuple[Dataset, ...]:
    """The datasets of topics, separated by commas, at the first of the bootstrap servers."""
    first = servers.split(",", maxsplit=1)[0].strip().rpartition("://")[2]
    if ":" not in first:
        first = f"{first}:{_KAFKA_PORT}"
    return tuple(
        Dataset(namespace=f"kafka://{first}", name=name)
        for topic in topics.split(",")
        if (name := topic.strip())
    )


def postgres_dataset(*, host: str, port: str, database: str, schema: str, table: str) -> Dataset:
    """The dataset of a table; the first of several hosts counts, and a socket is this machine."""
    first = host.split(",", maxsplit=1)[0]
    shown = "localhost" if not first or first.startswith(("/", "@")) else first
    return Dataset(
        namespace=f"postgres://{shown}:{port.split(',', maxsplit=1)[0] or '5432'}",
        name=f"{database}.{schema}.{table}",
    )
