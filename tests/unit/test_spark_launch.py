"""Command lines, environments and files of Spark's processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotwise.model.job import JobSpec
from slotwise.model.process import DriverProcess, ExecutorLaunch, ExecutorProcess
from slotwise.spark.conf import job_sizes
from slotwise.spark.java import Java
from slotwise.spark.jvm_files import ONE_LOG_CONTEXT, argument_file
from slotwise.spark.jvm_flags import NO_CACHE, FromCache
from slotwise.spark.jvm_modules import module_options
from slotwise.spark.launch import (
    Command,
    SlotContext,
    driver_conf,
    driver_jvm_command,
    driver_program_command,
    executor_command,
    executor_host,
)

SECRET = "the-secret"
TICKET = "the-ticket"
TOKEN = "the-token"


def slot(**changes: Any) -> SlotContext:
    fields: dict[str, Any] = {
        "java": Java(Path("/jdk/bin/java"), 17, "JAVA_HOME"),
        "spark_home": Path("/site/pyspark"),
        "bridge_jar": Path("/cache/bridge.jar"),
        "python": "/venv/bin/python",
        "directory": Path("/slots/a 1"),
        "host": "127.0.0.1",
        "job_id": "job-1",
        "bridge_port": 7077,
        "bridge_token": TOKEN,
        "base_env": {"PATH": "/bin", "SLOTWISE_TOKEN": "mine", "SPARK_HOME": "/other", "PYSPARK_GATEWAY_PORT": "1"},
    }
    return SlotContext(**(fields | changes))


def driver(conf: dict[str, str] | None = None, **changes: Any) -> DriverProcess:
    conf = conf or {}
    sizes = job_sizes(conf)
    fields: dict[str, Any] = {
        "name": "nightly",
        "program": "/jobs/nightly.py",
        "args": ("--day", "1"),
        "working_dir": "/jobs",
        "conf": conf,
        "driver": sizes.driver,
        "executor": sizes.executor,
        "min_executors": sizes.min_executors,
        "initial_executors": sizes.initial_executors,
        "max_executors": sizes.max_executors,
        "dynamic_allocation": sizes.dynamic_allocation,
    }
    return DriverProcess(JobSpec(**(fields | changes)), SECRET, attempt=3)


def executor(**changes: Any) -> ExecutorProcess:
    process = ExecutorProcess(
        executor_id="300",
        ticket=TICKET,
        app_id="app-1",
        driver_url="spark://CoarseGrainedScheduler@127.0.0.1:4000",
        profile_id=2,
        size=job_sizes({"spark.executor.memory": "2g"}).executor,
        secret=SECRET,
        working_dir="/jobs",
        launch=ExecutorLaunch({"spark.authenticate": "true"}, ("-Dme={{EXECUTOR_ID}}.{{APP_ID}}",), ("/x.jar",)),
    )
    return msgspec.structs.replace(process, **changes)


def arguments(command: Command) -> list[str]:
    """What Java reads from its argument file."""
    text = next(text for name, text in command.files.items() if name.endswith(".args"))
    return [line[1:-1].replace('\\"', '"').replace("\\\\", "\\") for line in text.splitlines()]


def test_the_drivers_jvm() -> None:
    command = driver_jvm_command(driver({"spark.driver.extraJavaOptions": "-Da='b c'"}), slot())
    assert command.argv == (
        "/jdk/bin/java",
        "@/slots/a 1/driver.args",
        "org.apache.spark.api.python.PythonGatewayServer",
    )
    assert command.cwd == "/jobs"
    words = arguments(command)
    assert words[:2] == ["-cp", "/cache/bridge.jar:/site/pyspark/jars/*"]
    assert {"-Xmx1024m", "-XX:+UseSerialGC", "-Da=b c", "-Dspark.master=spark+slotwise://embedded"} <= set(words)
    assert f"-Dspark.authenticate.secret={SECRET}" in words
    assert "-Dlog4j2.configurationFile=file:///slots/a%201/log4j2.properties" in words
    assert "rootLogger.level = WARN" in command.files["log4j2.properties"]
    assert "-Djava.io.tmpdir=/slots/a 1" in words
    env = command.env
    assert (env["SLOTWISE_BRIDGE_PORT"], env["SLOTWISE_BRIDGE_TOKEN"]) == ("7077", TOKEN)
    assert (env["SLOTWISE_JOB_ID"], env["SLOTWISE_ATTEMPT"]) == ("job-1", "3")
    assert env["_PYSPARK_DRIVER_CONN_INFO_PATH"] == "/slots/a 1/gateway-3"
    assert env["SPARK_HOME"] == "/site/pyspark"
    assert env["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("own", "ours"), [("-Dx=1", True), ("-Dlog4j2.contextSelector=a.B", False), ("-DLog4jContextSelector=a.B", False)]
)
def test_all_of_a_jvm_logs_in_one_context_unless_the_job_says_otherwise(own: str, ours: bool) -> None:
    words = arguments(driver_jvm_command(driver({"spark.driver.extraJavaOptions": own}), slot()))
    assert (ONE_LOG_CONTEXT in words, own in words) == (ours, True)


@pytest.mark.parametrize("java_major", [17, 21, 25])
def test_module_options_fit_the_java(java_major: int) -> None:
    options = module_options(java_major)
    assert not any("incubator" in option for option in options)
    assert ("--sun-misc-unsafe-memory-access=allow" in options) == (java_major >= 23)
    assert ("--add-opens=java.base/sun.security.action=ALL-UNNAMED" in options) == (java_major < 24)


def test_the_collector_is_serial_for_one_core_only() -> None:
    def collectors(conf: dict[str, str]) -> list[str]:
        return [word for word in arguments(driver_jvm_command(driver(conf), slot())) if word.startswith("-XX:+Use")]

    assert collectors({}) == ["-XX:+UseSerialGC"]
    assert collectors({"spark.driver.cores": "2"}) == []
    assert collectors({"spark.driver.extraJavaOptions": "-XX:+UseZGC"}) == ["-XX:+UseZGC"]
    # With it, Spark would see less than its floor.
    assert collectors({"spark.driver.memory": "450m"}) == []


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_what_a_job_says_of_its_compilers_holds(role: str) -> None:
    own = "-XX:Tier4InvocationThreshold=7"
    if role == "driver":
        command = driver_jvm_command(driver({"spark.driver.extraJavaOptions": own}), slot())
    else:
        launch = ExecutorLaunch({}, (own,))
        command = executor_command(executor(launch=launch), slot())
    words = [word for word in arguments(command) if word.startswith("-XX:Tier4InvocationThreshold=")]
    # The last one counts for Java.
    assert words == ["-XX:Tier4InvocationThreshold=50000", own]


def test_a_jvm_that_waited_before_the_cache_was_made_can_take_a_later_order() -> None:
    start = FromCache(("-XX:AOTCache=/c/spark.aot",), (Path("/c/janino.jar"),))
    before, after = (driver_jvm_command(driver(), slot(jvm_cache=cache)) for cache in (NO_CACHE, start))
    assert before.handover is not None
    assert after.handover is not None
    assert before.handover.key == after.handover.key


def test_no_secret_on_any_command_line() -> None:
    commands = [
        driver_jvm_command(driver(), slot()),
        driver_program_command(driver(), slot()),
        executor_command(executor(), slot()),
    ]
    for command in commands:
        for secret in (SECRET, TICKET, TOKEN):
            assert secret not in " ".join(command.argv)
            assert secret not in repr(command)
        assert "mine" not in command.env.values()
        assert "PYSPARK_GATEWAY_PORT" not in command.env


def test_the_jobs_settings_win_over_defaults_but_not_over_its_sizes() -> None:
    conf = driver_conf(
        driver({"spark.authenticate": "false", "spark.master": "local[2]", "spark.executor.instances": "7"}), slot()
    )
    assert conf["spark.authenticate"] == "false"
    assert conf["spark.master"] == "local[2]"
    assert conf["spark.executor.instances"] == "7"
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.app.name"] == "nightly"
    assert "spark.executor.memoryOverhead" not in conf


def test_sizes_that_do_not_follow_from_the_conf_are_set() -> None:
    sizes = job_sizes({"spark.executor.memoryOverhead": "1g", "spark.executor.pyspark.memory": "300m"})
    conf = driver_conf(driver(executor=sizes.executor), slot())
    assert conf["spark.executor.memoryOverhead"] == "1024m"
    assert conf["spark.executor.pyspark.memory"] == "300m"


@pytest.mark.parametrize(
    ("stated", "size"),
    [
        ({"spark.executor.memory": "1g"}, "4m"),
        ({"spark.executor.memory": "16g"}, "4m"),
        ({"spark.executor.memory": "1g", "spark.buffer.pageSize": "16m"}, "16m"),
        # Spark's own are as small, or a task could run out of them.
        ({"spark.executor.memory": "1g", "spark.executor.cores": "3"}, None),
        ({"spark.executor.memory": "17g"}, None),
        ({"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1g"}, None),
    ],
)
def test_pages_of_memory_are_small_where_sparks_own_are_large(stated: dict[str, str], size: str | None) -> None:
    conf = driver_conf(driver(stated, executor=job_sizes(stated).executor), slot())
    assert conf.get("spark.buffer.pageSize") == size


def test_dynamic_allocation_bounds() -> None:
    conf = driver_conf(
        driver({"spark.dynamicAllocation.enabled": "true"}, min_executors=1, initial_executors=2, max_executors=5),
        slot(),
    )
    prefix = "spark.dynamicAllocation."
    assert [conf[prefix + key] for key in ("minExecutors", "initialExecutors")] == ["1", "2"]
    assert prefix + "maxExecutors" not in conf
    assert "spark.executor.instances" not in conf


def test_files_are_mapped_as_spark_submit_does() -> None:
    process = driver(
        {"spark.files": "/have.txt", "spark.jars": "hdfs://x/y.jar"},
        py_files=("/lib.zip", "/one.py"),
        files=("/data.csv",),
        archives=("/env.tgz#env",),
        jars=("/my.jar",),
    )
    conf = driver_conf(process, slot())
    assert conf["spark.submit.pyFiles"] == "/lib.zip,/one.py"
    assert conf["spark.files"] == "/have.txt,/data.csv,/lib.zip,/one.py"
    assert conf["spark.archives"] == "/env.tgz#env"
    assert conf["spark.jars"] == "hdfs://x/y.jar,/my.jar"
    assert arguments(driver_jvm_command(process, slot()))[1].endswith("/jars/*:/my.jar")


def test_the_program() -> None:
    command = driver_program_command(driver(py_files=("/lib.zip",)), slot(), jvm_pid=42)
    assert command.argv[0] == "/venv/bin/python"
    assert command.argv[1].endswith("/slotwise/spark/runner.py")
    assert command.argv[2:] == ("/jobs/nightly.py", "--day", "1")
    env = command.env
    assert env["PYSPARK_PYTHON"] == "/venv/bin/python"
    assert env["PYTHONHASHSEED"] == "0"
    assert json.loads(env["SLOTWISE_PY_FILES"]) == ["/lib.zip"]
    assert env["SLOTWISE_JVM_PID"] == "42"
    assert "PYTHONPATH" not in env
    assert "SLOTWISE_BRIDGE_TOKEN" not in env


def test_another_interpreter_gets_our_pyspark() -> None:
    process = driver(python="/opt/python")
    context = slot(python_zips=(Path("/zips/pyspark.zip"), Path("/zips/py4j.zip")))
    assert driver_program_command(process, context).env["PYTHONPATH"] == "/zips/pyspark.zip:/zips/py4j.zip"
    home = driver_conf(process, context)["spark.executorEnv.SPARK_HOME"]
    launch = ExecutorLaunch(env={"SPARK_HOME": home})
    elsewhere = slot(spark_home=Path("/elsewhere/pyspark"))
    assert executor_command(executor(launch=launch), elsewhere).env["SPARK_HOME"] == "/elsewhere/pyspark"
    assert "SPARK_HOME" not in executor_command(executor(), context).env


def test_an_executor() -> None:
    command = executor_command(executor(), slot())
    assert command.argv[:3] == (
        "/jdk/bin/java",
        "@/slots/a 1/executor.args",
        "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    )
    given = dict(zip(command.argv[3::2], command.argv[4::2], strict=True))
    assert given == {
        "--driver-url": "spark://CoarseGrainedScheduler@127.0.0.1:4000",
        "--executor-id": "300",
        "--hostname": "127.1.1.44",
        "--bind-address": "127.1.1.44",
        "--cores": "1",
        "--app-id": "app-1",
        "--resourceProfileId": "2",
    }
    words = arguments(command)
    assert {"-Xmx2048m", "-Dspark.authenticate=true", "-Dme=300.app-1"} <= set(words)
    assert words[1].startswith("/x.jar:")
    # Spark puts files of the application where the executor runs: never into the user's folder.
    assert command.cwd == "/slots/a 1"
    assert command.env["_SPARK_AUTH_SECRET"] == SECRET
    assert command.env["SPARK_EXECUTOR_ATTRIBUTE_SLOTWISE_TICKET"] == TICKET
    assert command.env["SPARK_LOCAL_DIRS"] == "/slots/a 1/local"


def test_resource_addresses_are_handed_to_spark() -> None:
    size = job_sizes({"spark.executor.resource.gpu.amount": "1"}).executor
    command = executor_command(executor(size=size), slot(resource_addresses={"gpu": ("3",)}))
    assert json.loads(command.files["resources.json"]) == [
        {"id": {"componentName": "spark.executor", "resourceName": "gpu"}, "addresses": ["3"]}
    ]
    assert command.argv[-2:] == ("--resourcesFile", "/slots/a 1/resources.json")


def test_executor_hosts_on_loopback_are_distinct() -> None:
    ids = [str(number) for number in (*range(1, 600), 65535, 65536, 70000)]
    hosts = {executor_host("127.0.0.1", key) for key in ids}
    assert len(hosts) == len(ids)
    assert "127.0.0.1" not in hosts
    assert executor_host("localhost", "1") == "127.1.0.1"
    assert executor_host("node-7", "1") == "node-7"
    assert executor_host("10.0.0.7", "1") == "10.0.0.7"


def test_argument_file_quotes() -> None:
    assert argument_file(['-Da=b "c" \\d', "-De=1\n2"]) == '"-Da=b \\"c\\" \\\\d"\n"-De=1\\n2"\n'
