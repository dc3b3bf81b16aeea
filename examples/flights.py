"""Which airline leaves New York late, in which season and in which weather?

A plain PySpark program: it names no master and knows nothing of Slotwise. It reads the five tables of the New York
flights of 2013 (every departure from EWR, JFK and LGA; the planes, airlines and airports; the weather at the three
airports by the hour), joins them, and gives each (season, airline, weather) its delays, the age of its planes and the
distances that it flew.

    slotwise run examples/flights.py --data DATA --output OUTPUT
    python examples/flights.py --data DATA --output OUTPUT

Every average is one of whole numbers and every percentile is exact, so the answer does not depend on how many tasks
there are nor on the order in which they end: any master gives the same rows.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

LATE_MINUTES = 15
FEWEST_FLIGHTS = 200
EARTH_RADIUS_KM = 6371.0088

# Only the columns that are used: with an explicit schema nothing is read twice to guess types, and a column that
# holds text where a number belongs fails instead of turning everything into text.
SCHEMAS = {
    "flights": "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP",
    "weather": "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, "
    "wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, "
    "time_hour TIMESTAMP",
    "planes": "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, "
    "speed INT, engine STRING",
    "airports": "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING",
    "airlines": "carrier STRING, name STRING",
}


def read(spark: SparkSession, data: str, table: str) -> DataFrame:
    """One of the tables; 'NA' in a field means that it is not known."""
    return spark.read.csv(f"{data}/{table}.csv", schema=SCHEMAS[table], header=True, nullValue="NA", mode="FAILFAST")


@F.pandas_udf(DoubleType())
def great_circle_km(lat1: pd.Series, lon1: pd.Series, lat2: pd.Series, lon2: pd.Series) -> pd.Series:
    """Kilometres between two points given in degrees (haversine), a batch of rows at a time."""
    north1, east1, north2, east2 = (np.radians(degrees) for degrees in (lat1, lon1, lat2, lon2))
    chord = np.sin((north2 - north1) / 2) ** 2 + np.cos(north1) * np.cos(north2) * np.sin((east2 - east1) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(chord))


def season_of(month: Column) -> Column:
    """The season, numbered so that names sort in the order of the year."""
    return (
        F.when(month.between(3, 5), "2-spring")
        .when(month.between(6, 8), "3-summer")
        .when(month.between(9, 11), "4-autumn")
        .otherwise("1-winter")
    )


def classified(weather: DataFrame) -> DataFrame:
    """One word for each hour's weather at each airport: what hinders flying most comes first."""
    word = (
        F.when((F.col("precip") > 0) & (F.col("temp") <= 34), "snow")
        .when(F.col("precip") > 0, "rain")
        .when(F.col("visib") < 3, "fog")
        # Not above 150 miles an hour: one reading of the year says 1,048.
        .when(F.col("wind_speed").between(20, 150), "wind")
        .otherwise("fair")
    )
    return weather.select("origin", "time_hour", word.alias("weather"))


def joined(spark: SparkSession, data: str) -> DataFrame:
    """Every flight with its airline's name, the weather at its departure, its plane's age and its distance."""
    flights = read(spark, data, "flights")
    weather = classified(read(spark, data, "weather"))
    planes = read(spark, data, "planes").select("tailnum", F.col("year").alias("built"))
    airlines = read(spark, data, "airlines").withColumnRenamed("name", "airline")
    airports = read(spark, data, "airports")
    starts = airports.select(F.col("faa").alias("origin"), F.col("lat").alias("lat1"), F.col("lon").alias("lon1"))
    ends = airports.select(F.col("faa").alias("dest"), F.col("lat").alias("lat2"), F.col("lon").alias("lon2"))
    return (
        flights.join(weather, ["origin", "time_hour"], "left")
        .join(planes, "tailnum", "left")
        .join(airlines, "carrier")
        .join(starts, "origin", "left")
        .join(ends, "dest", "left")
        .select(
            season_of(F.col("month")).alias("season"),
            "carrier",
            "airline",
            F.coalesce("weather", F.lit("unknown")).alias("weather"),
            "dep_delay",
            (F.col("year") - F.col("built")).alias("plane_age"),
            F.round(great_circle_km("lat1", "lon1", "lat2", "lon2")).cast("long").alias("km"),
        )
    )


def delays(flights: DataFrame) -> DataFrame:
    """The answer: one row for each season, airline and weather. A flight that never left has no delay (null)."""
    return flights.groupBy("season", "carrier", "airline", "weather").agg(
        F.count("*").alias("flights"),
        (F.count("*") - F.count("dep_delay")).alias("cancelled"),
        F.avg("dep_delay").alias("mean_delay_min"),
        F.percentile("dep_delay", 0.9).alias("p90_delay_min"),
        F.avg((F.col("dep_delay") > LATE_MINUTES).cast("int")).alias("late_share"),
        F.avg("plane_age").alias("mean_plane_age_years"),
        F.avg("km").alias("mean_distance_km"),
    )


def show(answer: DataFrame) -> None:
    """The rows with most late departures, among those with enough flights to mean something."""
    worst = (
        answer.where(F.col("flights") >= FEWEST_FLIGHTS)
        .orderBy(F.desc("late_share"), "season", "carrier", "weather")
        .select(
            "season",
            "airline",
            "weather",
            "flights",
            "cancelled",
            F.round("mean_delay_min", 1).alias("mean delay"),
            F.round("p90_delay_min", 1).alias("p90 delay"),
            F.concat(F.format_number(F.col("late_share") * 100, 1), F.lit(" %")).alias("late"),
            F.round("mean_plane_age_years", 1).alias("plane age"),
            F.round("mean_distance_km", 0).cast("int").alias("km"),
        )
        .limit(15)
    )
    print(f"Departures from New York in 2013 that left more than {LATE_MINUTES} minutes late: the worst of each kind")
    print(f"(season, airline and weather with at least {FEWEST_FLIGHTS} flights; delays in minutes, ages in years)")
    worst.show(truncate=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Which airline leaves New York late, when, and in which weather?")
    parser.add_argument("--data", required=True, metavar="DIR", help="directory of the five CSV files")
    parser.add_argument("--output", required=True, metavar="DIR", help="directory for the answer, as Parquet")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("flights").getOrCreate()
    answer = delays(joined(spark, options.data))
    # One file a season: without this every task of the last stage writes a file into every season's directory.
    answer.repartition("season").write.mode("overwrite").partitionBy("season").parquet(options.output)
    show(spark.read.parquet(options.output))
    spark.stop()


if __name__ == "__main__":
    main()
