"""What arrives: flights as a stream, airports as they are now; and the airports with the longest delays."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

spark: SparkSession  # given by whoever reads the definitions

# Definitions are read in the project's folder.
DATA = (Path.cwd() / "data").as_uri()
FLIGHT = "year int, month int, day int, carrier string, origin string, dep_delay double"


@F.udf(StringType())
def grade(minutes):
    return "late" if minutes >= 15 else "in time"


@dp.table(spark_conf={"spark.executor.cores": "1"})
def flights() -> DataFrame:
    return spark.readStream.schema(FLIGHT).option("header", True).csv(f"{DATA}/flights")


@dp.materialized_view(spark_conf={"spark.executor.cores": "1", "slotwise.parallelism.max": "1"})
def airports() -> DataFrame:
    return spark.read.option("header", True).option("inferSchema", True).csv(f"{DATA}/airports")


@dp.temporary_view
def departed() -> DataFrame:
    return spark.read.table("flights").where("dep_delay is not null")


@dp.materialized_view(spark_conf={"spark.executor.cores": "2", "spark.executor.memory": "700m"})
def delays_by_airport() -> DataFrame:
    mean = spark.read.table("departed").groupBy("origin").agg(F.avg("dep_delay").alias("mean_delay"))
    named = mean.join(spark.read.table("airports"), F.col("origin") == F.col("faa"))
    return named.select("origin", "name", "mean_delay", grade("mean_delay").alias("grade"))
