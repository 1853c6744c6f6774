"""A session without Spark ML's functions and pandas, and their way back, in a separate process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.kit.place import environment_of

pytestmark = pytest.mark.spark

SCRIPT = """
import sys
from weir.spark.session.start import create_session
session = create_session(
    name="light", master="local[1]", conf={}, parallelism=1, fast_working_directory=True,
    log_file=None,
)
assert [one for one in sys.meta_path if type(one).__name__ == "_OnMlImport"], (
    "Spark made the session as ever"
)
assert session.sparkContext.appName == "weir: light"
assert session.conf.get("spark.sql.shuffle.partitions") == "1"
from pyspark.sql import functions as F
F.lit(1)
session.range(1).mapInArrow(lambda batches: batches, "id long")
assert "pandas" not in sys.modules, "it takes 0.7 s"
from pyspark.ml.functions import array_to_vector, vector_to_array
assert not [one for one in sys.meta_path if type(one).__name__ == "_OnMlImport"]
vector = array_to_vector(F.array(F.lit(1.0), F.lit(2.0)))
import numpy
import pandas
assert session.range(1).select(F.lit(numpy.int8(7))).schema[0].dataType.simpleString() == "tinyint"
assert session.createDataFrame(pandas.DataFrame({"n": [3]})).toPandas()["n"].tolist() == [3]
print(session.range(1).select(vector_to_array(vector)).collect()[0][0])
"""


@pytest.mark.slow
def test_a_session_gets_spark_ml_and_pandas_when_they_are_imported() -> None:
    """The session is made without them (Spark's constructor is unchanged), and without pandas."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment_of({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[1.0,", "2.0]"]
