"""A function for a column, in a module beside the scripts that use it."""

from pyspark.sql.functions import udf


@udf("string")
def string_decode(s):
    return s.upper() if s else s
