"""Says which of its JVMs have the cache of loaded classes in their memory."""

import json
import os

from pyspark.sql import SparkSession


def has_cache(pid: int) -> bool:
    with open(f"/proc/{pid}/maps") as maps:
        return any(line.rstrip().endswith(("/spark.jsa", "/spark.aot")) for line in maps)


def executor_has_cache(_: int) -> bool:
    pid = os.getppid()
    while os.readlink(f"/proc/{pid}/exe").rpartition("/")[2] != "java":
        with open(f"/proc/{pid}/stat") as stat:
            pid = int(stat.read().rpartition(")")[2].split()[1])
    return has_cache(pid)


spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext
driver = sc._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getPid()
rows = spark.range(10).selectExpr("id % 2 as key", "id").groupBy("key").sum("id").collect()
found = {
    "driver": has_cache(driver),
    "executor": sc.parallelize([0], 1).map(executor_has_cache).first(),
    "sum": sum(row[1] for row in rows),
}
print(json.dumps(found), flush=True)
spark.stop()
