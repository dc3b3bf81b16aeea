"""Imports a module that came as a py-file, here and in executors, and reads a file that came as a file."""

import teapots
from pyspark import SparkFiles
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()


def read(_):
    """What an executor sees."""
    import teapots

    with open(SparkFiles.get("words.txt")) as file:
        return teapots.NUMBER, file.read().strip()


print(teapots.NUMBER, spark.sparkContext.parallelize(range(2), 2).map(read).distinct().collect(), flush=True)
print(spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.some.thing"), flush=True)
