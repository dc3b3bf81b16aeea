"""A job with a known answer: rounds of shuffles over known numbers, slow enough for something to happen meanwhile.

Arguments: the folder for its marks, its name, the number of rounds. It notes each start of a driver, and whether an
earlier driver of the same job was alive then, which must never be."""

import json
import os
import sys
import time

from pyspark.sql import SparkSession, functions

folder, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
starts = os.path.join(folder, name + ".starts")
if os.path.exists(starts):
    with open(starts) as file:
        for line in file:
            pid, born = line.split()
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    same = stat.read().rpartition(")")[2].split()[19] == born
            except OSError:
                same = False
            if same:
                with open(os.path.join(folder, name + ".overlap"), "a") as overlap:
                    overlap.write(f"{pid} was alive when {os.getpid()} started\n")
with open("/proc/self/stat") as stat:
    born = stat.read().rpartition(")")[2].split()[19]
with open(starts, "a") as file:
    file.write(f"{os.getpid()} {born}\n")

spark = SparkSession.builder.getOrCreate()
total = 0


def slowly(rows):
    time.sleep(0.4)
    return rows


for _ in range(rounds):
    numbers = spark.sparkContext.parallelize(range(20_000), 4).mapPartitions(slowly).map(lambda n: (n % 97, n))
    frame = spark.createDataFrame(numbers, "key int, value int").groupBy("key").agg(functions.sum("value").alias("sum"))
    total += sum(row["sum"] for row in frame.collect())

answer = os.path.join(folder, name + ".answer")
with open(answer + ".partial", "w") as file:
    json.dump({"total": total}, file)
os.replace(answer + ".partial", answer)
spark.stop()
