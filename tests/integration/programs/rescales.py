"""Notes every task that runs: sums a cached, shuffled set of numbers again and again until a file is there.

Arguments: the folder for the notes. Each line of `map` is a task of the shuffle's first half: the same number twice
means that Spark had to compute it again. Each line of `reduce` is the executor (its Python daemon) that ran a task."""

import os
import sys
import time

from pyspark.sql import SparkSession

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()


def note(name, value):
    with open(os.path.join(folder, name), "a") as file:
        file.write(f"{value}\n")


def mapped(number, rows):
    note("map", number)
    return [(row % 40, row) for row in rows]


def reduced(rows):
    note("reduce", os.getppid())
    time.sleep(0.1)
    return [sum(value for _, value in rows)]


pairs = spark.sparkContext.parallelize(range(80_000), 12).mapPartitionsWithIndex(mapped)
sums = pairs.partitionBy(12)
rounds = 0
while True:
    assert sum(sums.mapPartitions(reduced).collect()) == sum(range(80_000))
    rounds += 1
    note("rounds", rounds)
    if os.path.exists(os.path.join(folder, "stop")):
        break
print(f"rounds={rounds}")
spark.stop()
