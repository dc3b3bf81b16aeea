"""Sums numbers slowly over a shuffle; prints `sum=…` and leaves with the code of its first argument."""

import sys
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 8.0
TASKS = 16


def slowly(rows):
    """Take the time of one task."""
    time.sleep(seconds / TASKS)
    return rows


pairs = spark.sparkContext.parallelize(range(1600), TASKS).mapPartitions(slowly).map(lambda x: (x % 5, x))
print("started", flush=True)
print(f"sum={sum(value for _, value in pairs.reduceByKey(lambda a, b: a + b, 4).collect())}", flush=True)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
