"""The binding to Spark: the only folder that imports pyspark, and where Spark's words (batch,
offset log) end."""
