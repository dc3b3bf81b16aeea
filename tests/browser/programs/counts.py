"""Counts with Spark, round after round, and says so, until somebody ends it."""

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
for number in range(10_000):
    print(f"round {number}: {spark.range(1000).count()} rows", flush=True)
    time.sleep(0.5)
