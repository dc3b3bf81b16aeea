"""A streaming query that counts files of numbers, one micro-batch a file, with state and a checkpoint.

Arguments: a folder with `in` (files of one number a line), where `checkpoint`, `batches` (a line a micro-batch: its
number, its rows, and the executors that ran its tasks) and, to end the program, `stop` are."""

import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()


def note(batch, number):
    def where(rows):
        time.sleep(0.2)
        return [(os.getppid(), sum(1 for _ in rows))]

    ran = batch.repartition(8).rdd.mapPartitions(where).collect()
    total = batch.agg(F.sum("count").alias("n")).first().n
    with open(os.path.join(folder, "batches"), "a") as file:
        file.write(f"{number} {total} {','.join(sorted({str(pid) for pid, _ in ran}))}\n")


lines = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).csv(os.path.join(folder, "in"))
counts = lines.groupBy((F.col("n") % 10).alias("k")).count()
query = (
    counts.writeStream.outputMode("complete")
    .foreachBatch(note)
    .option("checkpointLocation", os.path.join(folder, "checkpoint"))
    .start()
)
while not os.path.exists(os.path.join(folder, "stop")):
    if query.exception() is not None:
        raise query.exception()
    time.sleep(0.1)
query.stop()
spark.stop()
