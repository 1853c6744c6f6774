"""Keyed state of many keys: ``python -m benchmarks.keys``.

One process without Spark has one subtask's state, with the default bound of its memory
(``weir.operators.state-memory``). It adds all keys in no order, 100,000 a batch, and hands over
what changed every tenth batch. Then come batches that read, change and write 100,000 random keys
each, and batches of 100 keys, each with its hand-over. A second process restores the state from
what was handed over, and runs such a batch. Each state:

``value``: an integer by integer; ``text``: an integer by a text of 20 bytes; ``map``: entries of
maps by integer; ``timers``: a timer for each key.

The figure is the resident memory at its peak, with Python and its libraries, of the larger of the
two processes. The target is 1 GiB, for 10 and for 30 million keys. Proof: every value that is read
is the number of times that its key was written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.machine import describe_machine
from benchmarks.tables import TablesDifferError
from weir.config import Configuration
from weir.config.options import STATE_MEMORY
from weir.operators.state.key_index import ascending
from weir.operators.state.keyed import KeyedState
from weir.operators.state.map_state import MapState
from weir.operators.state.memory import StateMemory
from weir.operators.state.timers import Timers
from weir.operators.state.types import Layer, TimeDomain

PEAK_MB_TARGET = 1024
#: Keys of a large batch, and of a small one.
_BATCH, _SMALL = 100_000, 100
_REPEATED = 15
#: Divides no number of keys that anyone would choose.
_PRIME = 179_424_673
#: Map keys of each key.
_MAP_KEYS = 7


class Counted:
    """A state, in which numbered keys are counted."""

    def __init__(self, kind: str, memory: StateMemory, layers: Sequence[Layer]) -> None:
        self._kind = kind
        self._maps: MapState | None = None
        self._timers: Timers | None = None
        if kind == "map":
            self._maps = MapState("s", pa.int64(), pa.int64(), 0, layers, memory=memory)
            self.state = self._maps.state
        elif kind == "timers":
            self._timers = Timers("s", TimeDomain.PROCESSING, layers, memory=memory)
            self.state = self._timers.state
        else:
            self.state = KeyedState("s", pa.int64(), 0, layers, memory=memory)

    def count(self, numbers: np.ndarray[Any, np.dtype[np.int64]], before: int | None) -> None:
        """Count the keys of these numbers once more. ``before``: how often each was, if known.

        Raises ``TablesDifferError`` for another count.
        """
        keys: pa.Array = pa.array(numbers)
        if self._kind == "text":
            keys = pc.utf8_lpad(keys.cast(pa.string()), 20, "k")
        self.state.begin_batch(keys, pa.array((numbers % 128).astype(np.int32)))
        if self._timers is not None:
            self._timers.register(keys, keys)
        elif self._maps is not None:
            map_keys = pa.array(numbers % _MAP_KEYS)
            found = self._maps.get(keys, map_keys).to_numpy()
            self._maps.put(keys, map_keys, pa.array(found + 1))
            _check(found, before)
        else:
            found = self.state.get(keys).to_numpy()
            self.state.put(keys, pa.array(found + 1))
            _check(found, before)
        self.state.end_batch()


def _check(found: np.ndarray[Any, Any], before: int | None) -> None:
    wrong = (found < 1).any() if before is None else (found != before).any()
    if wrong:
        raise TablesDifferError("A key has another count.")


class Case:
    """One process with one state, whose layers are files in a directory."""

    def __init__(self, kind: str, keys: int, directory: Path) -> None:
        self._keys, self._directory = keys, directory
        self._memory = StateMemory(Configuration({}).value(STATE_MEMORY), str(directory))
        self._layers = sorted(directory.glob("layer-*"))
        mapped = (self._memory.mapped_file(str(one), 0, one.stat().st_size) for one in self._layers)
        begun = time.perf_counter()
        self._counted = Counted(kind, self._memory, [Layer(data, (0, 128)) for data in mapped])
        self.figures: dict[str, float] = {"restore_s": time.perf_counter() - begun}
        self._random = np.random.default_rng(1)

    def fill(self) -> None:
        """Add all keys."""
        begun = time.perf_counter()
        for number, start in enumerate(range(0, self._keys, _BATCH), start=1):
            numbers = np.arange(start, min(start + _BATCH, self._keys), dtype=np.int64)
            # Each once, as far apart as random ones, and without an array of all.
            self._counted.count(numbers * _PRIME % self._keys, 0)
            if number % 10 == 0:
                self.hand_over()
        self.hand_over()
        self.figures["fill_s"] = time.perf_counter() - begun

    def hand_over(self) -> None:
        """Write what has changed, as a batch does at its end."""
        path = self._directory / f"layer-{time.monotonic_ns():020}"
        with path.open("xb") as file:
            written = self._counted.state.next_layer(file)
        stay, follows = written or (len(self._layers), False)
        for old in self._layers[stay:]:
            old.unlink()
        self._layers = self._layers[:stay] + ([path] if follows else [])
        if not follows:
            path.unlink()
        self._memory.trim()

    def measure(self, name: str, size: int) -> None:
        """Milliseconds of a batch with so many keys."""
        ms, cpu_ms = [], []
        for _ in range(_REPEATED):
            numbers = ascending(self._random.integers(0, self._keys, size))
            self._random.shuffle(numbers)
            begun, cpu = time.perf_counter(), time.process_time()
            self._counted.count(numbers, None)
            self.hand_over()
            ms.append((time.perf_counter() - begun) * 1000)
            cpu_ms.append((time.process_time() - cpu) * 1000)
        self.figures[f"{name}_ms"] = statistics.median(ms)
        self.figures[f"{name}_max_ms"] = max(ms)
        self.figures[f"{name}_cpu_ms"] = statistics.median(cpu_ms)

    def end(self) -> dict[str, float]:
        """All figures, in milliseconds, seconds and MiB."""
        if len(self._counted.state) != self._keys:
            raise TablesDifferError(f"There are {len(self._counted.state)} keys.")
        status = dict(
            line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
        )
        return self.figures | {
            "peak_mb": int(status["VmHWM"].split()[0]) // 1024,
            "anonymous_mb": int(status["RssAnon"].split()[0]) // 1024,
            "files_mb": self._memory.in_files >> 20,
        }


def _run_case(kind: str, keys: int, directory: Path) -> None:
    """In a process of its own: fill or restore, measure, and print the figures as JSON."""
    is_restored = any(directory.glob("layer-*"))
    case = Case(kind, keys, directory)
    if not is_restored:
        case.fill()
    case.measure("batch", _BATCH)
    case.measure("small", _SMALL)
    print(json.dumps(case.end()))


def _child(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(kind: str, keys: int) -> float:
    """The peak of the resident memory in MiB, over both processes."""
    with tempfile.TemporaryDirectory(prefix="weir-keys-") as directory:
        command = [sys.executable, "-m", "benchmarks.keys", "--case", kind, str(keys), directory]
        first, restored = _child(command), _child(command)
    print(
        f"{kind}, {keys:,} keys: filled in {first['fill_s']:.1f} s, batch of {_BATCH:,} in"
        f" {first['batch_ms']:.0f} ms (CPU {first['batch_cpu_ms']:.0f}, longest"
        f" {first['batch_max_ms']:.0f}), of {_SMALL} in {first['small_ms']:.1f} ms (longest"
        f" {first['small_max_ms']:.0f}); at its peak"
        f" {first['peak_mb']:.0f} MiB, at the end {first['anonymous_mb']:.0f} MiB without files,"
        f" {first['files_mb']:.0f} MiB in files; restored in {restored['restore_s']:.1f} s, then"
        f" {restored['batch_ms']:.0f} ms, at its peak {restored['peak_mb']:.0f} MiB",
        flush=True,
    )
    return max(first["peak_mb"], restored["peak_mb"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keys", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--kinds", nargs="+", default=["value", "text", "map", "timers"])
    parser.add_argument("--keys", nargs="+", type=int, default=[10_000_000, 30_000_000])
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.case:
        kind, keys, directory = chosen.case
        _run_case(kind, int(keys), Path(directory))
        return 0
    print(describe_machine(), flush=True)
    peaks = {(kind, keys): measure(kind, keys) for keys in chosen.keys for kind in chosen.kinds}
    for (kind, keys), peak in peaks.items():
        print(f"keys_{kind}_{keys // 1_000_000}m peak_mb={peak:.0f} target={PEAK_MB_TARGET}")
    worst = max(peaks.values())
    print(f"keys peak_mb={worst:.0f} target={PEAK_MB_TARGET}")
    return 0 if worst <= PEAK_MB_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
