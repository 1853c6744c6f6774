"""``FarPlace``: a place all of whose files are in S3, and what its job must have written there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.cluster.s3.server import BUCKET, S3Server
from tests.kit.place import Place, Rows, files_rows
from tests.kit.waiting import PATIENCE_S, wait_until

PIPELINE = Path(__file__).parents[1] / "pipelines" / "on_s3.py"


class FarPlace:
    """A place and, below one directory of the bucket, what its job reads and writes."""

    def __init__(self, s3: S3Server, place: Place) -> None:
        self.place = place
        self._s3 = s3
        self._name = place.directory.name
        #: What lies below its directory of the bucket.
        self.objects = s3.objects / self._name
        #: As Spark reaches it, and as Weir and delta-rs do.
        self.hadoop = f"s3a://{BUCKET}/{self._name}"
        self.root = f"s3://{BUCKET}/{self._name}"

    def settings(self, checkpoints: str | None = None) -> tuple[str, ...]:
        """The options of ``weir run`` for its directories; checkpoints are reached by ``s3:``."""
        below = checkpoints or self.root
        pairs = {
            "execution.checkpointing.dir": f"{below}/checkpoints",
            "execution.checkpointing.savepoint-dir": f"{below}/savepoints",
            "weir.working-dir": f"{self.hadoop}/work",
            **self._s3.settings,
        }
        return tuple(word for pair in pairs.items() for word in ("--conf", "=".join(pair)))

    @property
    def environment(self) -> dict[str, str]:
        """What the pipeline reads and writes."""
        return {**self._s3.environment, "WHERE": self.hadoop}

    def land(self, files: int) -> None:
        """Add files of numbers."""
        self._s3.land(self.place, files, f"{self._name}/in")

    def local_files(self) -> list[Path]:
        """What lies in the directory in which the command runs, beside what the test put there."""
        own = ("in", "output-", "errors-", "mark")
        return [one for one in self.place.directory.iterdir() if not one.name.startswith(own)]

    def wait_for_all(self, within_s: float = PATIENCE_S) -> None:
        """Wait until each number is in the files, and has its rank."""
        rows = self.place.rows().total()
        for name in ("raw_files", "ranks"):
            wait_until(
                lambda name=name: files_rows(self.objects / "out" / name).total() >= rows,
                f"all rows are in {name}",
                within_s=within_s,
            )

    def assert_exact(self, copies: Mapping[str, Rows] | None = None) -> int:
        """Check each sink against the input; the number of rows compared.

        ``copies``: the rows of further sinks that must have the input.
        """
        return self.place.compared(self.objects / "out", copies=copies)
