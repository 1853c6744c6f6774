"""The binding to Spark.

The only package that imports pyspark; Spark's terms (batch, offset log) do not leave it.
"""
