"""A channel as a source of Spark's that the driver implements: exactly the admitted segments, read natively.

Its offset is a position of the channel: ``{"channel": "clean", "position": 41}``, in the query's own
offset log and nowhere else. A batch from one offset to the next reads the segments in between: their
Parquet files become a plan like the one that Spark makes for its own file source, so columns are pruned
and filters are pushed down. It is a source of Spark's first interface (V1), since those of the second
get neither.

What a batch has read is what its offset says (PROTOCOL P7). ``latestOffset`` names the end of what was
admitted, ``getBatch`` reads up to there, and the next ``latestOffset`` is given the end of what is
committed; the two are compared.

After a restart Spark asks once for the last batch, which is committed: its segments may be gone, and
nobody reads what is returned. That is the only time when segments may be missing.

Names are Java's; a proxy has no default methods, so each method of the interfaces is here.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from weir.core.types import VertexId
from weir.errors import InvariantError, PipelineError, StorageError, WeirError
from weir.spark.error_text import first_cause
from weir.spark.jvm import JavaStream, Jvm
from weir.spark.planning_rounds import PlanningRounds, QueryInterruptedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Whatever the session says: nothing that was admitted may be left out.
_READ_EVERYTHING = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}

#: The position before all segments.
_NOTHING = -1


class ChannelSource(JavaStream):
    """One channel of one query in one attempt."""

    def __init__(self, jvm: Jvm, channel: VertexId, schema: StructType, rounds: PlanningRounds) -> None:
        super().__init__(jvm, f"channel {channel}")
        self._channel = channel
        # As of any file's, each column and each part of one may be null.
        self._schema = jvm.schema(schema).asNullable()
        self._rounds = rounds
        self._lock = threading.Lock()
        #: Positions and files of admitted segments that no committed batch has read, ascending.
        self._segments: deque[tuple[int, list[str]]] = deque()
        #: The end of what was admitted; None: nothing was in this attempt.
        self._admitted: int | None = None
        #: The end of what the newest batch of this attempt has read; None if there was none.
        self._read: int | None = None

    def frame(self) -> DataFrame:
        """The streaming DataFrame; one query may use it in several places."""
        jvm = self._jvm
        relation = jvm.sql_class("execution.streaming.runtime.StreamingExecutionRelation")
        unnamed = getattr(relation, "apply$default$4")()
        output = jvm.attributes(self._schema)
        return jvm.frame(relation(self.proxy, output, jvm.none, unnamed, jvm.java_session))

    def admit(self, position: int, files: Sequence[str]) -> None:
        """Let the next batch read a segment: Parquet files, as Spark names them. The query rests meanwhile."""
        with self._lock:
            self._segments.append((position, list(files)))
            self._admitted = position

    @property
    def consumed(self) -> int | None:
        """Up to which position the batches of this attempt have read it; None if nothing. Call it while the query rests."""
        return self._read

    # -- the source --------------------------------------------------------------------------------------

    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802
        """The end of what is admitted."""
        self._rounds.answer(self)
        committed = self._position(start)
        if self._read is not None and committed != self._read:
            raise InvariantError(
                f"channel {self._channel!r} was read up to {self._read}, but Spark's log says {committed}"
            )
        with self._lock:
            while self._segments and self._segments[0][0] <= committed:
                self._segments.popleft()
            if self._admitted is None or self._admitted <= committed:
                return start
            return self._offset(self._admitted)

    def getBatch(self, start: Any, end: Any) -> Any:  # noqa: N802
        """The rows of the segments after ``start`` and up to ``end``."""
        first = _NOTHING if start.isEmpty() else self._position(start.get())
        last = self._position(end)
        with self._lock:
            if self._admitted is not None and last > self._admitted:
                raise InvariantError(f"channel {self._channel!r} is to be read up to {last}, not admitted")
            found = [(position, files) for position, files in self._segments if first < position <= last]
            if self._admitted is not None and first < last:
                if not found or found[-1][0] != last:
                    raise InvariantError(f"channel {self._channel!r} has no segment {last} any more")
                self._read = last
        try:
            return self._jvm.rows(self._plan([file for _, files in found for file in files]))
        except WeirError:
            raise
        except Exception as error:
            if "InterruptedException" in str(error):
                raise QueryInterruptedError from None
            # Short: through the text Spark runs a regular expression that recurses for each character.
            raise StorageError(f"Channel {self._channel!r} cannot be read: {first_cause(error)}.") from None

    def schema(self) -> Any:
        """The columns."""
        return self._schema

    def getOffset(self) -> Any:  # noqa: N802
        """Spark calls ``latestOffset`` in its place."""
        raise InvariantError("Spark asks for the latest offset, not for an offset")

    def initialOffset(self) -> Any:  # noqa: N802
        """A source of the first interface has none."""
        raise InvariantError("a channel has no initial offset")

    class Java:
        """What Java sees."""

        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )

    # -- inside ------------------------------------------------------------------------------------------

    def _plan(self, files: Sequence[str]) -> Any:
        """What Spark's own file source would plan for these files, without its look at the directory."""
        jvm = self._jvm
        if not files:
            local = jvm.sql_class("catalyst.plans.logical.LocalRelation")
            return local(jvm.attributes(self._schema), jvm.seq(()), True, jvm.none)
        path = jvm.java_class("org.apache.hadoop.fs.Path")
        options = jvm.map(_READ_EVERYTHING)
        no_partitions = jvm.scala_object(
            "org.apache.spark.sql.execution.datasources.PartitionSpec"
        ).emptySpec()
        index = jvm.sql_class("execution.datasources.InMemoryFileIndex")(
            jvm.java_session,
            jvm.seq(path(file) for file in files),
            options,
            jvm.none,
            jvm.scala_object("org.apache.spark.sql.execution.datasources.NoopCache"),
            jvm.some(no_partitions),
            jvm.none,
        )
        # Spark lists a path that is gone as no file, whatever the options say.
        if index.allFiles().size() != len(files):
            raise StorageError(f"Files of channel {self._channel!r} have vanished: {', '.join(files)}.")
        relation = jvm.sql_class("execution.datasources.HadoopFsRelation")(
            index,
            no_partitions.partitionColumns(),
            self._schema,
            jvm.none,
            jvm.sql_class("execution.datasources.parquet.ParquetFileFormat")(),
            options,
            jvm.java_session,
        )
        return jvm.scala_object("org.apache.spark.sql.execution.datasources.LogicalRelation").apply(
            relation, True
        )

    def _offset(self, position: int) -> Any:
        return self._jvm.offset(json.dumps({"channel": self._channel, "position": position}))

    def _position(self, offset: Any) -> int:
        """The position that an offset names."""
        if offset is None:
            return _NOTHING
        text = str(offset.json())
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.get("channel") != self._channel:
            raise PipelineError(
                f"The query reads channel {self._channel!r}, but its checkpoint says {text}: it was taken by another"
                " version of Weir or of the pipeline. Begin anew with --fresh into new tables."
            )
        return int(fields["position"])
