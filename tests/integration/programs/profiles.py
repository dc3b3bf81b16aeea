"""One stage in executors of another size (rdd.withResources)."""

from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
requests = ExecutorResourceRequests().cores(2).memory("600m").memoryOverhead("400m")
profile = ResourceProfileBuilder().require(requests).require(TaskResourceRequests().cpus(1)).build
rdd = spark.sparkContext.parallelize(range(100), 4)
print(f"default={rdd.sum()}", flush=True)
grouped = rdd.map(lambda x: (x % 2, x)).withResources(profile).groupByKey(2)
print(f"profile={grouped.mapValues(sum).values().sum()}")
