"""Says which processes and which Spark context it has. Arguments: words; ``key=value`` is what it asks for."""

import json
import os
import sys
import threading
import urllib.request

from pyspark.sql import SparkSession

builder = SparkSession.builder
for pair in (word for word in sys.argv[1:] if "=" in word):
    builder = builder.config(*pair.split("="))
spark = builder.getOrCreate()
context = spark.sparkContext
rows = spark.range(1000).selectExpr("id % 5 as k").groupBy("k").count().collect()
# The driver's JVM and an executor's: how many classes each remembers not to have.
ABSENT = "org.apache.spark.scheduler.cluster.slotwise.AbsentClasses"
absent = [
    getattr(context._jvm, ABSENT).remembered(),
    int(spark.range(1).selectExpr(f"java_method('{ABSENT}', 'remembered')").first()[0]),
]


def told(what):
    """What Spark's own pages tell of the application."""
    with urllib.request.urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}") as answer:
        return json.load(answer)


def tasks_and_more():
    """How many jobs, stages, queries and tasks it has had."""
    return [
        *(len(told(what)) for what in ("jobs", "stages", "sql")),
        sum(executor["totalTasks"] for executor in told("executors")),
    ]


context._jsc.sc().listenerBus().waitUntilEmpty()
print(
    json.dumps(
        {
            "python": os.getpid(),
            "jvm": int(context._jvm.java.lang.ProcessHandle.current().pid()),
            "threads": threading.active_count(),
            "argv": sys.argv[1:],
            "cwd": os.getcwd(),
            "rows": sorted(tuple(row) for row in rows),
            "app_id": context.applicationId,
            "names": [context.appName, context.getConf().get("spark.app.name"), spark.conf.get("spark.app.name", "")],
            "partitions": [
                spark.conf.get("spark.sql.shuffle.partitions"),
                spark.newSession().conf.get("spark.sql.shuffle.partitions"),
            ],
            "absent": absent,
            "views": [table.name for table in spark.catalog.listTables() if table.isTemporary],
            "ui": context.uiWebUrl,
            "told": tasks_and_more() if context.uiWebUrl else [],
            "executors": context._jsc.sc().getExecutorMemoryStatus().size() - 1,
        }
    )
)
