"""Each executor says which units of a resource are its own."""

import time

from pyspark import TaskContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()


def mine(_):
    """Long enough that both executors get a task."""
    time.sleep(2)
    return TaskContext.get().resources()["gpu"].addresses


found = spark.sparkContext.parallelize(range(4), 4).map(mine).collect()
print("addresses", sorted({address for addresses in found for address in addresses}), flush=True)
print("each", {len(addresses) for addresses in found}, flush=True)
