"""Says what it finds in its driver's JVM, its own process and its executor, and leaves things behind; arguments: a word
that only this job may know, and a folder for what it writes elsewhere than in its working directory."""

import json
import os
import sys
from pathlib import Path

word, folder = sys.argv[1:]
loaded = sorted(sys.modules)
found_env = dict(os.environ)

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

spark = SparkSession.builder.config("spark.looks.around", word).getOrCreate()
jvm = spark._jvm
system = jvm.java.lang.System


def texts(mapping):
    return {str(key): str(mapping[key]) for key in mapping}


def on_executor(_):
    import time

    yield {"env": dict(os.environ), "cwd": os.getcwd(), "files": sorted(os.listdir("."))}
    time.sleep(0.01)


def property_there(name):
    """A system property of the executor's JVM: looked up there, row by row."""
    row = F.expr(
        f"java_method('java.lang.System', 'getProperty', concat('{name}', substring(cast(id as string), 0, 0)))"
    )
    return spark.range(100, 101).select(row).collect()[0][0]


Path("rows.csv").write_text("a,b\n1,2\n3,4\n")
rows = spark.read.csv("rows.csv", header=True).count()
spark.range(3).write.mode("overwrite").csv("written")
spark.range(5).write.mode("overwrite").saveAsTable("kept")
relative = str(jvm.java.io.File("by-file").getAbsolutePath())
stream = jvm.java.io.FileOutputStream("by-stream")
stream.close()
(seen,) = spark.sparkContext.parallelize([0], 1).mapPartitions(on_executor).collect()

print(
    json.dumps(
        {
            "pid": int(jvm.java.lang.ProcessHandle.current().pid()),
            "python": os.getpid(),
            "java": int(str(system.getProperty("java.specification.version"))),
            "env": found_env,
            "jvm_env": texts(system.getenv()),
            "properties": texts(system.getProperties()),
            "conf": dict(spark.sparkContext.getConf().getAll()),
            "app_id": spark.sparkContext.applicationId,
            "views": [table.name for table in spark.catalog.listTables() if table.isTemporary],
            "rows": rows,
            "relative": relative,
            "executor": seen,
            "executor_properties": {
                name: property_there(name) for name in ("user.dir", "looks.around", "spark.app.name")
            },
            "modules": loaded,
        }
    )
)

# What the next job must not find.
spark.range(1).createOrReplaceTempView("left_" + word)
system.setProperty("looks.around", word)
os.environ["LOOKS_AROUND"] = word
Path(folder, "temporary-" + word).touch()
spark.stop()
