"""Nested JSON files, flattened into JSON files, once a second; the query's name has spaces."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

if __name__ == "__main__":
    world, out = sys.argv[1:3]
    spark = (
        SparkSession.builder.appName("File Streaming Demo")
        .master("local[3]")
        .config("spark.streaming.stopGracefullyOnShutdown", "true")
        .config("spark.sql.streaming.schemaInference", "true")
        .getOrCreate()
    )
    raw_df = (
        spark.readStream.format("json")
        .option("path", f"{world}/invoices")
        .option("maxFilesPerTrigger", 1)
        .load()
    )
    explode_df = raw_df.selectExpr(
        "InvoiceNumber", "DeliveryAddress.City", "explode(InvoiceLineItems) as LineItem"
    )
    flattened_df = (
        explode_df.withColumn("ItemCode", expr("LineItem.ItemCode"))
        .withColumn("ItemQty", expr("LineItem.ItemQty"))
        .drop("LineItem")
    )
    invoiceWriterQuery = (
        flattened_df.writeStream.format("json")
        .queryName("Flattened Invoice Writer")
        .outputMode("append")
        .option("path", f"{out}/flattened")
        .option("checkpointLocation", f"{out}/chk-point-dir")
        .trigger(processingTime="1 second")
        .start()
    )
    invoiceWriterQuery.awaitTermination()
