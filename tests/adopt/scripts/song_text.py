"""A function for a column, in a module beside the scripts that use it."""

from pyspark.sql.functions import udf
from pyspark.sql.types import StringType


@udf(StringType())
def string_decode(s):
    return s.upper() if s else s
