"""The bridge against real Spark: what driver and executors do, and what the JVM reports (see ``spark_worker``)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.model.process import DriverDirectives
from slotwise.model.resources import MIB
from slotwise.spark.conf import job_sizes
from slotwise.spark.java import find_java
from slotwise.spark.jvm_flags import HOT_LATER
from tests.integration.spark_worker import INTERPRETER, SECRET, TOKEN, Driver, Worker

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("bridge"))
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def driver(worker: Worker) -> Driver:
    """One JVM and one program for the tests below, which run in the order of this file."""
    conf = {
        "spark.executor.instances": "1",
        "spark.sql.shuffle.partitions": "4",
        # Any failure that counts against the program is one too many.
        "spark.task.maxFailures": "1",
        "spark.decommission.enabled": "false",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    }
    return worker.driver("interpreter", INTERPRETER, conf)


QUERY = """
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf, sum as total
spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext
twice = udf(lambda n: n * 2, "long")
def query():
    rows = spark.range(0, 1000, 1, 8).selectExpr("id % 3 as key", "id as value")
    rows = rows.groupBy("key").agg(total(twice("value")).alias("sum"))
    return sorted([row.key, row.sum] for row in rows.collect())
"""
RESULT = [[key, 2 * sum(n for n in range(1000) if n % 3 == key)] for key in range(3)]


def test_an_unmodified_program_runs(worker: Worker, driver: Driver) -> None:
    assert driver.run(QUERY + "result = query()") == RESULT
    report = worker.report
    assert worker.hellos == [{"token": TOKEN, "protocol": 1, "app_id": "slotwise-job-7-1-1"}]
    assert report.app_id == "slotwise-job-7-1-1"
    assert report.driver_url.startswith("spark://CoarseGrainedScheduler@127.0.0.1:")
    assert report.ui_url.startswith("http://")
    assert report.registered == ("1",)
    total = report.totals[0]
    assert (total.profile_id, total.count) == (0, 1)
    sizes = job_sizes({}, executor_memory="512m")
    assert total.size == sizes.executor
    worker.wait(lambda: worker.report.tasks_done >= 9 and not worker.report.stages, "the progress of the query")
    assert worker.report.first_task_unix_s == pytest.approx(time.time(), abs=120)
    assert worker.report.directives_seen == worker.directives.version
    versions = [report.version for report in worker.reports]
    assert versions == sorted(versions)


def test_no_secret_is_visible_to_other_users(worker: Worker, driver: Driver) -> None:
    for child in worker.children:
        if child.poll() is None:
            assert SECRET not in Path(f"/proc/{child.pid}/cmdline").read_text()
    assert SECRET not in str(worker.report)
    for path in worker.folder.rglob("*.args"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_broken_connection_is_made_anew(worker: Worker, driver: Driver) -> None:
    version = worker.report.version
    seen = len(worker.hellos)
    worker.hang_up()
    worker.wait(lambda: len(worker.hellos) > seen, "a second hello")
    count = len(worker.reports)
    worker.wait(lambda: len(worker.reports) > count, "the report again")
    assert worker.report.version >= version
    assert worker.report.registered == ("1",)


def test_executors_nobody_launched_are_refused(worker: Worker, driver: Driver) -> None:
    wrong_ticket = worker.launch("101", ticket="another")
    worker.tell()
    wrong_secret = worker.launch("102", secret="f" * 32)
    assert wrong_ticket.child.wait(timeout=60) != 0
    assert wrong_secret.child.wait(timeout=60) != 0
    assert "wrong ticket" in wrong_ticket.log.read_text()
    for key in ("101", "102"):
        worker.lose(key, caused_by_program=False)
        del worker.tickets[key]
    assert worker.report.registered == ("1",)


def test_an_executor_that_comes_before_its_directives_is_held(worker: Worker, driver: Driver) -> None:
    early = worker.launch("2")
    # Registration comes some seconds after the start; that it is held for as long shows in the driver's silence.
    worker.wait(lambda: "Connecting to driver" in early.log.read_text() or early.child.poll() is None, "its start")
    assert worker.report.registered == ("1",)
    worker.tell()
    worker.wait(lambda: worker.report.registered == ("1", "2"), "the executor's registration")


SLOW_JOB = """
import time
def slow(n):
    time.sleep(0.5)
    return n
def slow_job():
    return sc.parallelize(range(8), 8).map(slow).sum()
result = slow_job()
"""


def send_and_wait_for_tasks(worker: Worker, driver: Driver, code: str, tasks: int = 1) -> None:
    # Reports of progress come late: what runs now must not be taken for the tasks of this job.
    worker.wait(lambda: not worker.report.stages, "the end of earlier stages")
    driver.send(code)

    worker.settle_until(lambda: any(stage.running >= tasks for stage in worker.report.stages), "running tasks")


def test_a_killed_executor_is_replaced_and_no_task_fails(worker: Worker, driver: Driver) -> None:
    send_and_wait_for_tasks(worker, driver, SLOW_JOB, tasks=2)
    for key in ("1", "2"):
        os.kill(worker.executors[key].child.pid, signal.SIGKILL)
        worker.lose(key, caused_by_program=False)
    worker.tell()
    assert driver.answer() == sum(range(8))
    registered = worker.report.registered
    assert "1" not in registered
    assert "2" not in registered
    assert driver.run("result = query()") == RESULT


STUCK_JOB = """
def stuck(_):
    open({marker!r}, "w").close()
    time.sleep(600)
try:
    sc.parallelize([0], 1).foreach(stuck)
    result = "no failure"
except Exception as error:
    result = str(error.java_exception)
"""


def send_and_wait_until_stuck(worker: Worker, driver: Driver, name: str) -> None:
    # Spark counts a task as running when it has sent it, but blames it only once it has said that it runs: so must we.
    marker = worker.folder / name
    driver.send(STUCK_JOB.format(marker=str(marker)))
    worker.settle_until(marker.exists, "a task that runs")


def test_a_loss_that_the_program_caused_counts_against_it(worker: Worker, driver: Driver) -> None:
    send_and_wait_until_stuck(worker, driver, "stuck-1")
    for key in list(worker.executors):
        os.kill(worker.executors[key].child.pid, signal.SIGKILL)
        worker.lose(key, caused_by_program=True)
    worker.tell()
    reason = driver.answer()
    assert "ExecutorLostFailure" in reason
    assert "said the test" in reason


def test_without_word_of_the_worker_sparks_own_verdict_stands(worker: Worker, driver: Driver) -> None:
    send_and_wait_until_stuck(worker, driver, "stuck-2")
    for executor in worker.executors.values():
        os.kill(executor.child.pid, signal.SIGKILL)
    assert "its worker is silent" in driver.answer(settle=False)


def test_with_resources_asks_for_another_size(worker: Worker, driver: Driver) -> None:
    driver.send(
        "from pyspark.resource import *\n"
        "need = ExecutorResourceRequests().cores(2).memory('700m').memoryOverhead('100m').pysparkMemory('600m')\n"
        "profile = ResourceProfileBuilder().require(need).require(TaskResourceRequests().cpus(1)).build\n"
        "result = [profile.id, sc.parallelize(range(4), 2).withResources(profile).map(lambda n: n + 1).sum()]"
    )
    profile, total = driver.answer()
    assert total == 10
    # Needs AnyProfileManager, which is put into a private field of SparkContext: fails if a Spark version moves it.
    totals = {entry.profile_id: entry for entry in worker.report.totals}
    assert set(totals) == {0, profile}
    assert totals[profile].count == 1
    size = totals[profile].size
    assert (size.cores, size.heap_bytes, size.overhead_bytes, size.python_bytes) == (
        2,
        700 * MIB,
        100 * MIB,
        600 * MIB,
    )


def test_hadoops_settings_travel_without_the_places_where_they_come_from(worker: Worker, driver: Driver) -> None:
    driver.send(
        "def look(hadoop):\n"
        "    names = [each.getKey() for each in hadoop.iterator()]\n"
        "    told = [name for name in names if hadoop.getPropertySources(name)]\n"
        "    return [len(names), hadoop.get('io.file.buffer.size'), told]\n"
        "result = look(sc._jsc.hadoopConfiguration())"
    )
    # Needs a private field of Hadoop's Configuration: fails if a version moves it.
    settings, size, sources = driver.answer()
    assert settings > 500
    assert size == "65536"
    assert sources == []


def test_a_program_gets_all_settings_by_one_question(worker: Worker, driver: Driver) -> None:
    driver.send(
        "from py4j.clientserver import JavaClient\n"
        "conf = sc.getConf().set('spark.odd', 'a=\\n\"ß\"')\n"
        "asked, send = [], JavaClient.send_command\n"
        "JavaClient.send_command = lambda self, *words, **more: asked.append(words) or send(self, *words, **more)\n"
        "found = conf.getAll()\n"
        "JavaClient.send_command = send\n"
        "one_by_one = [(each._1(), each._2()) for each in conf._jconf.getAll()]\n"
        "questions = [words[0] for words in asked if not words[0].startswith('m\\n')]\n"
        "result = [found == one_by_one, len(questions), dict(found)['spark.odd'], len(found) > 20]"
    )
    # One to find the class, one to find its method, one to call that. What starts with an m lets go of an object that
    # is garbage here, whenever Python finds that.
    assert driver.answer() == [True, 3, 'a=\n"ß"', True]


def test_a_warm_jvm_asks_once_for_a_class_that_is_not_there(worker: Worker, driver: Driver, tmp_path: Path) -> None:
    driver.send(
        "import pathlib\n"
        f"jvm, folder = sc._jvm, pathlib.Path({str(tmp_path)!r})\n"
        "def over(parent):\n"
        "    return jvm.org.apache.spark.scheduler.cluster.slotwise.AbsentClasses.of(parent)\n"
        "def parent():\n"
        "    urls = sc._gateway.new_array(jvm.java.net.URL, 1)\n"
        "    urls[0] = jvm.java.net.URI(folder.as_uri() + '/').toURL()\n"
        "    return jvm.java.net.URLClassLoader(urls, None)\n"
        "def found(loader, name):\n"
        "    try:\n"
        "        return loader.loadClass(name).getName()\n"
        "    except Exception as error:\n"
        "        return error.java_exception.toString()\n"
        "name = 'py4j.Py4JException'\n"
        "shared = parent()\n"
        "early, late = over(shared), over(shared)\n"
        "result = [found(early, name), found(early, 'java.lang.String')]\n"
        "file = folder / 'py4j' / 'Py4JException.class'\n"
        "stream = jvm.java.lang.ClassLoader.getSystemClassLoader().getResourceAsStream('py4j/Py4JException.class')\n"
        "file.parent.mkdir()\n"
        "file.write_bytes(stream.readAllBytes())\n"
        "result += [found(shared, name), found(early, name), found(late, name)]"
    )
    absent = "java.lang.ClassNotFoundException: py4j.Py4JException"
    assert driver.answer() == [absent, "java.lang.String", "py4j.Py4JException", absent, "py4j.Py4JException"]


def test_killing_executors_by_hand_reports_them(worker: Worker, driver: Driver) -> None:
    victim = next(key for key in worker.report.registered if worker.executors[key].profile_id == 0)
    driver.send(f"result = sc._jsc.sc().killExecutor({victim!r})")
    assert driver.answer(settle=False) is True
    worker.wait(lambda: worker.report.kills == (victim,), "the kill")
    worker.settle_until(lambda: not worker.report.kills and victim not in worker.report.registered, "its end")


def next_context(worker: Worker, driver: Driver, number: int, settings: dict[str, str]) -> None:
    """Stop the program's context and start another in the same JVM."""
    earlier = worker.report.version
    driver.run("spark.stop()")
    worker.wait(lambda: worker.report.ended, "the end of the application")
    for executor in worker.executors.values():
        executor.child.wait(timeout=60)
    worker.executors.clear()
    worker.lost.clear()
    builder = "SparkSession.builder" + "".join(f".config({key!r}, {value!r})" for key, value in settings.items())
    driver.send(f"spark = {builder}.getOrCreate()\nsc = spark.sparkContext\nresult = sc.applicationId")
    assert driver.answer(settle=False) == f"slotwise-job-7-1-{number}"
    worker.wait(lambda: worker.report.app_id == f"slotwise-job-7-1-{number}", "the next application")
    assert worker.report.version > earlier
    assert not worker.report.ended
    worker.directives = DriverDirectives(0, "")


def wanted(worker: Worker) -> int:
    return sum(entry.count for entry in worker.report.totals)


def test_a_second_context_in_the_same_jvm_with_dynamic_allocation(worker: Worker, driver: Driver) -> None:
    next_context(worker, driver, 2, {"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "0"})
    assert wanted(worker) == 0
    driver.send("result = query()")
    worker.wait(lambda: wanted(worker) > 0, "a total above zero")
    assert driver.answer() == RESULT
    worker.settle_until(lambda: any(report.kills for report in worker.reports[-20:]), "idle executors given back")
    worker.settle_until(lambda: wanted(worker) == 0 and not worker.report.registered, "all of them given back")


def test_with_resources_works_with_dynamic_allocation(worker: Worker, driver: Driver) -> None:
    assert driver.run("result = sc.parallelize(range(4), 2).withResources(profile).map(lambda n: n + 1).sum()") == 10


def test_a_decommissioned_executor_ends_by_itself(worker: Worker, driver: Driver) -> None:
    settings = {"spark.decommission.enabled": "true", "spark.dynamicAllocation.enabled": "true"}
    next_context(worker, driver, 3, settings)
    assert driver.run("result = query()") == RESULT
    # Its peer takes what it had of the shuffle, and stays while Spark's shuffle tracking counts that as in use.
    worker.settle_until(lambda: worker.lost, "an idle executor to leave")
    assert {lost.exit_code for lost in worker.lost} == {0}
    assert not worker.report.kills


def test_the_driver_ends_in_order(worker: Worker, driver: Driver) -> None:
    assert driver.finish() == 0
    worker.wait(lambda: worker.report.ended, "the last report")
    for executor in worker.executors.values():
        executor.child.wait(timeout=60)
    log = (driver.directory / "jvm.log").read_text() + (driver.directory / "python.log").read_text()
    assert "incubator" not in log
    assert "default log4j profile" not in log


def test_sigterm_ends_a_local_program_cleanly(worker: Worker) -> None:
    driver = worker.driver(
        "local",
        "from pyspark.sql import SparkSession\nimport time\n"
        "spark = SparkSession.builder.master('local[2]').getOrCreate()\n"
        "print(spark.range(5).count(), spark.sparkContext.master, flush=True)\n"
        "spark.sparkContext.parallelize(range(2), 2).foreach(lambda n: time.sleep(600))\n",
        {},
    )
    worker.wait(lambda: driver.output, "the program's first line")
    assert driver.output[0].split() == ["5", "local[2]"]
    driver.python.terminate()
    assert driver.finish() == 143


def test_java_knows_the_options_by_which_it_optimises_later() -> None:
    argv = [str(find_java().path), *HOT_LATER, "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    flags = {words[1]: words[3] for line in done.stdout.splitlines() if len(words := line.split()) > 3}
    for option in HOT_LATER:
        name, _, value = option.removeprefix("-XX:").partition("=")
        assert flags[name] == value
