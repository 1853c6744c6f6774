"""From ``weir run`` to the first row, by where the checkpoints are.

``python -m tests.cluster.starts --runs 3`` starts one job, whose input and sinks are on the local
disk, with checkpoints on that disk, on HDFS (``hdfs:``) and in S3 (``s3:``) in turn. The clock runs
from the command until a file with rows has its final name. ``--before DIRECTORY`` names the ``src``
of another Weir, which takes turns with this one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.far_place import ON_HADOOP
from tests.cluster.hdfs import running_hdfs
from tests.cluster.s3.server import BUCKET, running_s3
from tests.kit.place import Place
from tests.kit.waiting import wait_until

_PATIENCE_S = 240.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="measure starts with checkpoints far away")
    parser.add_argument("--runs", type=int, default=3, help="of each")
    parser.add_argument("--before", type=Path, help="the src of another Weir")
    given = parser.parse_args(arguments)
    sources = {"now": None, **({"before": given.before.resolve()} if given.before else {})}
    times: dict[str, list[float]] = defaultdict(list)
    with running_hdfs() as hdfs, running_s3() as s3:
        os.environ |= {**hdfs.environment, **s3.environment, "SPARK_LOCAL_IP": "127.0.0.1"}
        stores = {"disk": "", "hdfs:": f"{hdfs.uri}/starts/", "s3:": f"s3://{BUCKET}/starts/"}
        # One run more, which brings the files of Java and Python into memory.
        for number in range(given.runs + 1):
            for store, below in stores.items():
                for when, source in sources.items():
                    took_s = _start(below, f"{when}-{number}", source)
                    print(f"{store} {when}: {took_s:.1f} s{'' if number else ' (not counted)'}")
                    if number:
                        times[f"{store} {when}"].append(took_s)
    for name, seconds in times.items():
        print(f"{name}: median {statistics.median(seconds):.1f} s of {len(seconds)}")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    return 0


def _start(below: str, name: str, source: Path | None) -> float:
    """Seconds until the first row; the job is run to its end."""
    with tempfile.TemporaryDirectory(prefix="weir-start-") as directory:
        place = Place(Path(directory))
        place.land(2)
        checkpoints = f"{below}{name}" if below else f"{directory}/kept"
        began_s = time.monotonic()
        run = place.start(
            *("--conf", f"execution.checkpointing.dir={checkpoints}"),
            *("--", "bounded", f"file://{directory}/in", f"file://{directory}/out"),
            pipeline=ON_HADOOP,
            environment={} if source is None else {"PYTHONPATH": str(source)},
        )
        try:
            files = place.directory / "out" / "raw_files"
            wait_until(
                lambda: any(files.glob("[!._]*")) or run.process.poll() is not None,
                "the first row is there",
                within_s=_PATIENCE_S,
            )
            took_s = time.monotonic() - began_s
            assert run.wait() == 0, run.story()
            place.assert_exact()
        finally:
            place.clear()
    return took_s


if __name__ == "__main__":
    sys.exit(main())
