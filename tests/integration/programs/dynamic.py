"""Work for several executors, then none: with dynamic allocation they rise and fall."""

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext


def slowly(rows):
    """Half a second a task."""
    time.sleep(0.5)
    return rows


print(f"sum={sc.parallelize(range(1000), 30).mapPartitions(slowly).sum()}", flush=True)
deadline = time.monotonic() + 60
status = sc._jsc.sc().statusTracker()
# The driver is one of them.
while len(status.getExecutorInfos()) > 2 and time.monotonic() < deadline:
    time.sleep(0.2)
print(f"executors left={len(status.getExecutorInfos()) - 1}", flush=True)
