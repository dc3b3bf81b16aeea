"""The program of the training run (:mod:`slotwise.spark.jvm_training`): what many jobs do at their beginning.

Run as a plain script with three arguments: a folder to write to, and the lists of loaded classes that the driver's and
the executor's JVM write as they go. In the end the driver's JVM loads what only the executor has loaded so far, so that
one cache serves both.
"""

import sys
from typing import Any

if sys.path and sys.path[0] == __file__.rpartition("/")[0]:
    del sys.path[0]


def main(folder: str, driver_classes: str, executor_classes: str) -> None:
    """Work with Spark, then load the classes that the executor has beyond the driver."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _work(spark, folder)
    _load(spark.sparkContext._jvm, _names(executor_classes) - _names(driver_classes))
    spark.stop()


def _work(spark: Any, folder: str) -> None:
    """Read, write, aggregate, join, sort and call Python, small enough to take seconds."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    numbers = spark.range(0, 2000, 1, 2).select(
        f.col("id"),
        (f.col("id") % 7).alias("key"),
        f.col("id").cast("string").alias("name"),
        f.rand(1).alias("share"),
        f.timestamp_seconds(f.col("id") * 3600).alias("moment"),
    )
    numbers.write.parquet(f"{folder}/parquet")
    read = spark.read.parquet(f"{folder}/parquet")
    read.groupBy("key").agg(f.sum("id"), f.count("*"), f.avg("share"), f.max("moment")).orderBy("key").collect()
    read.createOrReplaceTempView("numbers")
    spark.sql(
        "select a.key, count(distinct a.name), min(b.share) from numbers a join numbers b on a.id = b.id "
        "where a.share < 0.9 and b.moment > timestamp'1970-01-02' group by a.key having count(*) > 1 order by 2 desc"
    ).collect()
    few = spark.createDataFrame([(n, f"name {n}", None) for n in range(7)], "key int, label string, nothing double")
    joined = read.join(f.broadcast(few), "key", "left").filter(f.col("label").isNotNull())
    joined.withColumn("rank", f.row_number().over(Window.partitionBy("key").orderBy("id"))).limit(5).collect()
    joined.cache().count()
    joined.dropDuplicates(["label"]).write.mode("overwrite").csv(f"{folder}/csv", header=True)
    spark.read.csv(f"{folder}/csv", header=True, inferSchema=True).count()
    few.write.json(f"{folder}/json")
    spark.read.json(f"{folder}/json").collect()
    twice = f.udf(lambda number: number * 2, "long")
    read.select(twice("id").alias("twice")).agg(f.sum("twice")).collect()
    pairs = spark.sparkContext.parallelize(range(100), 2).map(lambda number: (number % 3, number))
    pairs.reduceByKey(lambda one, other: one + other).collect()


def _names(listed: str) -> "set[str]":
    """Classes of jars and of Java itself; others are made while a program runs and cannot be kept."""
    names = set()
    with open(listed, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, source = line.partition(" source: ")
            if source.startswith(("file:", "jrt:")) and "/" not in name:
                names.add(name.strip())
    return names


def _load(jvm: Any, names: "set[str]") -> None:
    from py4j.protocol import Py4JJavaError

    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in sorted(names):
        try:
            jvm.java.lang.Class.forName(name, False, loader)
        except Py4JJavaError:
            # Made at run time after all, or of another loader.
            continue


if __name__ == "__main__":
    main(*sys.argv[1:])
