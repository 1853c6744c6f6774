"""The REST server's answers on metrics, in Flink's words: pure functions of the readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from weir.metrics.definitions import METRICS, Metric
from weir.metrics.readings import Readings, VertexReading
from weir.monitoring.cluster import ExecutorView
from weir.rest.schema.metrics import AggregatedMetric, MetricValue

#: How Flink shows that there is no watermark yet: Java's smallest long.
NO_WATERMARK = -(2**63)
#: The share of the time above which Flink calls a task back-pressured.
_BACK_PRESSURED = 0.1
#: Flink's spelling of labels within names; others have underscores for spaces.
_IN_NAMES = {"heap": "Heap", "non_heap": "NonHeap", "direct": "Direct", "mapped": "Mapped"}
_OF_DRIVER = "Status."

#: Flink's rates, which Prometheus derives from counters.
_RATES: Mapping[str, Callable[[VertexReading], float]] = {
    "numRecordsInPerSecond": lambda reading: reading.records_in_rate,
    "numRecordsOutPerSecond": lambda reading: reading.records_committed_rate,
    "busyTimeMsPerSecond": lambda reading: 1000 * reading.busy,
    "idleTimeMsPerSecond": lambda reading: 1000 * reading.rested,
    "backPressuredTimeMsPerSecond": lambda reading: 1000 * reading.held,
    "isBackPressured": lambda reading: reading.held > _BACK_PRESSURED,
    "buffers.outputQueueLength": lambda reading: sum(
        channel.segments for channel in reading.view.outputs
    ),
    "buffers.outputQueueSize": lambda reading: sum(
        channel.size for channel in reading.view.outputs
    ),
}


def _skew(values: Sequence[float]) -> float:
    """Flink's: the mean distance from the mean, in percent of the mean, at most 100."""
    mean = fmean(values)
    if not mean:
        return 0.0
    return min(100.0, 100 * fmean(abs(value - mean) for value in values) / mean)


#: Aggregations by name.
AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": fmean,
    "sum": sum,
    "skew": _skew,
}


def job_metrics(readings: Readings) -> dict[str, str]:
    """The job's metrics by Flink's names."""
    found = {
        metric.flink: _text(_in_flinks_unit(metric, value))
        for metric in METRICS
        if not metric.labels and metric.flink and not metric.flink.startswith(_OF_DRIVER)
        for _, value in metric.read(readings)
        if value is not None
    }
    newest = readings.view.latest_completed
    if newest is not None:
        found["lastCheckpointExternalPath"] = newest.external_path
    return found


def vertex_metrics(readings: Readings, vertex: str) -> dict[str, str]:
    """The metrics of a vertex's subtask by Flink's names."""
    found = {
        metric.flink: _text(_in_flinks_unit(metric, value))
        for metric in METRICS
        if metric.labels == ("vertex",) and metric.flink
        for labels, value in metric.read(readings)
        if labels == (vertex,) and value is not None
    }
    found.setdefault("currentInputWatermark", str(NO_WATERMARK))
    (reading,) = [candidate for candidate in readings.vertices if candidate.view.vertex == vertex]
    return found | {name: _text(rate(reading)) for name, rate in _RATES.items()}


def driver_metrics(readings: Readings) -> dict[str, str]:
    """The metrics of the driver's JVM by Flink's names; empty if it does not answer."""
    found = {
        _driver_name(metric, labels): _text(_in_flinks_unit(metric, value))
        for metric in METRICS
        if metric.flink.startswith(_OF_DRIVER)
        for labels, value in metric.read(readings)
        if value is not None
    }
    buffers = {} if readings.jvm is None else readings.jvm.buffers
    for pool, (count, _, capacity) in buffers.items():
        if pool in _IN_NAMES:
            found[f"Status.JVM.Memory.{_IN_NAMES[pool]}.Count"] = str(count)
            found[f"Status.JVM.Memory.{_IN_NAMES[pool]}.TotalCapacity"] = str(capacity)
    return found


def executor_metrics(readings: Readings, executor: ExecutorView) -> dict[str, str]:
    """The metrics of an executor of Spark; Spark knows little of executors on other machines."""
    if executor.executor_id == "driver":
        return driver_metrics(readings)
    return {
        "Status.JVM.Memory.Heap.Used": str(executor.memory_used),
        "Status.JVM.Memory.Heap.Max": str(executor.memory_max),
    }


def values(metrics: Mapping[str, str], get: str | None) -> tuple[MetricValue, ...]:
    """The values that ``get`` names, or all names without it."""
    if not get:
        return tuple(MetricValue(id=name) for name in metrics)
    return tuple(
        MetricValue(id=name, value=metrics[name]) for name in _names(get) if name in metrics
    )


def aggregated(
    owners: Sequence[Mapping[str, str]], get: str | None, ways: Iterable[str]
) -> tuple[AggregatedMetric, ...]:
    """The metrics that ``get`` names over several owners, or all names without it."""
    if not get:
        names = dict.fromkeys(name for metrics in owners for name in metrics)
        return tuple(AggregatedMetric(id=name) for name in names)
    found = []
    for name in _names(get):
        numbers = [number for owner in owners if (number := _number(owner.get(name))) is not None]
        if numbers:
            figures = {way: float(AGGREGATIONS[way](numbers)) for way in ways}
            found.append(AggregatedMetric(id=name, **figures))
    return tuple(found)


def _names(get: str) -> list[str]:
    return list(dict.fromkeys(name for name in get.split(",") if name))


def _driver_name(metric: Metric, labels: tuple[str, ...]) -> str:
    return metric.flink.format(*(_IN_NAMES.get(label, label.replace(" ", "_")) for label in labels))


def _in_flinks_unit(metric: Metric, value: float) -> float:
    """Without the rounding error of the multiplication of seconds."""
    return round(value * metric.flink_scale, 3)


def _text(value: float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
