"""Says where it runs, and uses all that was uploaded with it, on the driver and on executors."""

import os
import sys
from pathlib import Path

import beside
import onlyhere
from pyspark import SparkFiles
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext


def on_executor(number: int) -> "tuple[int, str, str, str]":
    import beside
    import onlyhere

    inside = Path(SparkFiles.get("box")) / "inside.txt"
    return number + onlyhere.ANSWER, beside.WORD, inside.read_text(), sys.prefix


rows = sc.parallelize(range(4), 4).map(on_executor).collect()
print("rows", sorted(row[:3] for row in rows))
print("prefixes", sorted({os.path.basename(row[3]) for row in rows}))
print("data", Path("data.txt").read_text().strip())
print("driver", onlyhere.ANSWER, beside.WORD, os.path.basename(sys.prefix))
print("folder", os.getcwd())
Path("data.txt").write_text("changed by a job")
spark.stop()
