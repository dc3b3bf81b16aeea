"""The cache of loaded classes: what it is valid for, when it is used, when it is made. No JVM runs here."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from slotwise.config import Configuration
from slotwise.model.errors import ConfigError, EnvironmentProblem
from slotwise.model.resources import GIB
from slotwise.spark import jvm_cache_builder
from slotwise.spark.home import SparkHome
from slotwise.spark.java import Java
from slotwise.spark.jvm_cache import (
    BUILDING_PREFIX,
    KEPT_ENTRIES,
    MANIFEST,
    Failure,
    JvmCache,
    Manifest,
    cache_key,
    needs_base,
    supported,
    unwritable,
)
from slotwise.spark.jvm_cache_builder import BusyError, Code, build
from slotwise.spark.jvm_cache_keeper import CacheKeeper, KeeperPolicy
from slotwise.spark.jvm_flags import FromCache, base_flags, file_names, fits, make_flags, record_flags, use_flags
from slotwise.spark.launch import driver_jvm_command, executor_command
from slotwise.spark.plain_jars import PLAIN_JAR
from tests.unit.test_spark_launch import arguments, driver, executor, slot

J17 = Java(Path("/jdk/bin/java"), 17, "test")
J25 = Java(Path("/jdk/bin/java"), 25, "test")


class Machine:
    """A Java and a Spark that are nothing but files."""

    def __init__(self, folder: Path, major: int = 17) -> None:
        home = folder / "jdk"
        for name in ("bin/java", "lib/server/libjvm.so", "lib/server/classes.jsa"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(name)
        self.release = home / "release"
        self.release.write_text(f'JAVA_VERSION="{major}.0.1"\nJVM_VARIANT="Hotspot"\n')
        self.java = Java(home / "bin" / "java", major, "test")
        self.jars = folder / "pyspark" / "jars"
        self.jars.mkdir(parents=True)
        for name in ("a.jar", "b.jar"):
            (self.jars / name).write_text(name)
        self.spark = SparkHome(folder / "pyspark", "4.3.0")
        self.bridge = folder / "bridge.jar"
        self.bridge.write_text("bridge")
        self.root = folder / "caches"

    def key(self) -> str:
        return cache_key(self.java, self.spark, self.bridge)

    def cache(self) -> JvmCache:
        return JvmCache(self.root, self.java, self.spark, self.bridge)

    def publish(self, content: bytes = b"classes" * 1000) -> Path:
        cache = self.cache()
        self.root.mkdir(mode=0o700, exist_ok=True)
        cache.clear()
        (self.root / "spark.jsa").write_bytes(content)
        cache.publish([self.root / "spark.jsa"], 1.5)
        return cache.folder / "spark.jsa"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ---- options ----


def test_one_way_before_java_24_and_another_from_there_on() -> None:
    path = Path("/caches/k/spark")
    assert use_flags(J17, [path]) == (f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds*=off")
    assert use_flags(J17, [Path("/k/java.jsa"), path])[0] == f"-XX:SharedArchiveFile=/k/java.jsa:{path}"
    assert use_flags(J25, [path]) == (
        f"-XX:AOTCache={path}",
        *("-XX:+UnlockDiagnosticVMOptions", "-XX:-AOTReplayTraining"),
        *("-Xlog:cds*=off", "-Xlog:aot*=off"),
    )
    assert "-XX:ArchiveClassesAtExit=/build/spark.jsa" in record_flags(J17, Path("/build"))
    assert make_flags(J17, Path("/build")) == ()
    assert "-XX:AOTConfiguration=/build/recorded" in record_flags(J25, Path("/build"))
    assert {"-XX:AOTConfiguration=/build/recorded", "-XX:AOTCache=/build/spark.aot"} <= set(
        make_flags(J25, Path("/build"))
    )


@pytest.mark.parametrize(
    ("java", "options", "env", "class_path", "expected"),
    [
        (J17, [], {}, [], True),
        (J25, ["-Dmine=1", "-XX:+UseParallelGC"], {"JAVA_TOOL_OPTIONS": "-Dx=1"}, [], True),
        (J17, ["-javaagent:/a.jar"], {}, [], False),
        (J17, ["-agentlib:jdwp=server=y"], {}, [], False),
        (J17, ["-Xshare:off"], {}, [], False),
        (J17, ["-XX:SharedArchiveFile=/mine.jsa"], {}, [], False),
        (J25, ["-XX:AOTCache=/mine.aot"], {}, [], False),
        (J17, [], {"JDK_JAVA_OPTIONS": "-Dx=1 -javaagent:/a.jar"}, [], False),
        (J17, [], {}, ["/first.jar"], False),
        (J17, ["-XX:+UseZGC"], {}, [], False),
        (J17, ["--add-modules=jdk.incubator.vector"], {}, [], True),
        (J25, ["--add-modules=jdk.incubator.vector"], {}, [], False),
    ],
)
def test_a_cache_is_left_out_where_it_cannot_hold(
    java: Java, options: list[str], env: dict[str, str], class_path: list[str], expected: bool
) -> None:
    assert fits(java, GIB, options, env, class_path) is expected
    assert not fits(java, 40 * GIB, options, env, class_path)


def test_driver_and_executor_start_from_the_cache() -> None:
    flags = use_flags(J17, [Path("/c/spark.jsa")])
    start = FromCache(flags, (Path("/c/janino.jar"),))
    context = slot(jvm_cache=start, base_env={"HADOOP_CONF_DIR": "/etc/hadoop"})
    for command in (driver_jvm_command(driver(), context), executor_command(executor(), context)):
        words = arguments(command)
        # An executor with jars of its own in front has no use for it.
        in_front = "/x.jar" if words[1].startswith("/x.jar") else "/c/janino.jar"
        assert [flag in words for flag in flags] == [in_front != "/x.jar"] * len(flags)
        # A cache holds for the beginning of the class path and may have no folders in it.
        assert words[1] == f"{in_front}:/cache/bridge.jar:/site/pyspark/jars/*:/etc/hadoop"
    bare = msgspec.structs.replace(executor().launch, class_path=())
    assert set(flags) <= set(arguments(executor_command(executor(launch=bare), context)))
    agent = driver({"spark.driver.extraJavaOptions": "-javaagent:/a.jar"})
    assert not set(flags) & set(arguments(driver_jvm_command(agent, context)))
    first = driver({"spark.driver.extraClassPath": "/mine.jar"})
    assert not set(flags) & set(arguments(driver_jvm_command(first, context)))
    by_env = driver(env={"JAVA_TOOL_OPTIONS": "-agentpath:/a.so"})
    assert not set(flags) & set(arguments(driver_jvm_command(by_env, context)))


def test_a_cache_says_which_jars_come_first(machine: Machine) -> None:
    made = machine.publish()
    cache = machine.cache()
    cache.clear()
    plain = cache.folder / PLAIN_JAR
    plain.write_bytes(b"jar")
    archive = machine.root / made.name
    archive.write_bytes(b"archive")
    cache.publish([plain, archive], 1.0)
    assert cache.start() == FromCache(use_flags(machine.java, [cache.folder / made.name]), (plain,))
    plain.write_bytes(b"rat")
    assert not cache.start()


# ---- what a cache is valid for ----


def test_whatever_changes_leads_to_another_cache(machine: Machine) -> None:
    seen = {machine.key()}
    assert machine.key() in seen

    def changed(what: str) -> None:
        key = machine.key()
        assert key not in seen, what
        seen.add(key)

    (machine.jars / "c.jar").write_text("c")
    changed("a jar more")
    (machine.jars / "a.jar").write_text("other")
    changed("a jar's content")
    os.utime(machine.jars / "b.jar", (1, 1))
    changed("a jar's time")
    machine.bridge.write_text("another bridge")
    changed("the bridge")
    machine.release.write_text('JAVA_VERSION="17.0.2"\n')
    changed("Java's release")
    machine.java = Java(machine.java.path, 21, "test")
    changed("Java's version")
    (machine.jars / "note.txt").write_text("not a jar")
    assert machine.key() in seen


def test_a_cache_is_used_while_it_is_what_was_made(machine: Machine) -> None:
    cache = machine.cache()
    assert not cache.start()
    assert cache.wanted()
    assert cache.status().state == "missing"
    path = machine.publish()
    assert cache.start() == FromCache(use_flags(machine.java, [path]))
    assert not cache.wanted()
    status = cache.status()
    assert status.state == "ready"
    assert status.manifest is not None
    assert status.manifest.size_bytes == path.stat().st_size
    assert path.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in machine.root.iterdir() if entry.suffix == ".partial"] == []


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def altered(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def removed(path: Path) -> None:
    path.unlink()


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def garbled(path: Path) -> None:
    (path.parent / MANIFEST).write_text("{")


def escaping(path: Path) -> None:
    manifest = msgspec.json.decode((path.parent / MANIFEST).read_bytes(), type=Manifest)
    elsewhere = msgspec.structs.replace(manifest.files[0], name="../x/spark.jsa")
    (path.parent / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=(elsewhere,))))
    shutil.copytree(path.parent, path.parent.parent / "x")


@pytest.mark.parametrize("damage", [truncated, altered, removed, open_to_all, garbled, escaping])
@pytest.mark.parametrize("used_before", [False, True])
def test_a_damaged_cache_is_not_used_and_made_anew(
    machine: Machine, damage: Callable[[Path], None], used_before: bool
) -> None:
    path = machine.publish()
    cache = machine.cache()
    if used_before:
        assert cache.start()
    damage(path)
    assert not cache.start()
    assert cache.wanted()
    assert cache.status().state in ("damaged", "missing")
    machine.publish()
    assert cache.start()


def test_a_folder_that_others_can_write_is_not_trusted(machine: Machine) -> None:
    machine.publish()
    machine.root.chmod(0o777)
    cache = machine.cache()
    assert not cache.start()
    assert not cache.wanted()
    assert cache.status().state == "unusable"
    assert "written by others" in cache.status().reason


def test_a_failure_keeps_others_from_trying_for_a_day(machine: Machine) -> None:
    cache = machine.cache()
    machine.root.mkdir(mode=0o700)
    cache.note_failure("no room")
    assert not cache.wanted()
    assert cache.status().state == "failed"
    assert cache.status().reason == "no room"
    old = Failure("no room", time.time() - 2 * 86400)
    cache.folder.with_suffix(".failed").write_bytes(msgspec.json.encode(old))
    assert cache.wanted()
    cache.note_failure("again")
    machine.publish()
    assert cache.failure() is None


def test_old_caches_and_unfinished_ones_are_removed(machine: Machine) -> None:
    keys = []
    for number in range(KEPT_ENTRIES + 3):
        (machine.jars / "a.jar").write_text("x" * number)
        path = machine.publish()
        used = time.time() - (KEPT_ENTRIES + 3 - number) * 60
        os.utime(path.parent / MANIFEST, (used, used))
        keys.append(path.parent.name)
    (machine.root / f"{BUILDING_PREFIX}dead").mkdir()
    (machine.root / ("0" * 24)).mkdir()
    (machine.root / "somebody's").mkdir()
    machine.cache().prune()
    left = {path.name for path in machine.root.iterdir()}
    assert left == {*keys[-KEPT_ENTRIES:], "somebody's"}
    month_ago = time.time() - 31 * 86400
    os.utime(machine.root / keys[-2] / MANIFEST, (month_ago, month_ago))
    machine.cache().prune()
    assert keys[-2] not in {path.name for path in machine.root.iterdir()}


def test_a_java_that_can_have_none_says_why(machine: Machine) -> None:
    assert supported(machine.java) == ""
    machine.release.write_text('JVM_VARIANT="Openj9"\n')
    assert "not HotSpot" in supported(machine.java)
    assert not machine.cache().wanted()
    assert machine.cache().status().state == "unusable"


def test_a_java_without_an_archive_of_its_own_gets_one_in_the_cache(machine: Machine) -> None:
    assert not needs_base(machine.java)
    key = machine.key()
    (machine.java.path.parent.parent / "lib/server/classes.jsa").unlink()
    assert needs_base(machine.java)
    assert machine.key() != key
    assert not needs_base(Java(machine.java.path, 25, "test"))
    folder = Path("/build")
    assert file_names(machine.java, True) == ("java.jsa", "spark.jsa")
    base = Path("/caches/key/java.jsa")
    assert f"-XX:SharedArchiveFile={base}" in base_flags(machine.java, base)
    assert f"-XX:SharedArchiveFile={base}" in record_flags(machine.java, folder, base)


def test_configuration() -> None:
    assert Configuration({"taskmanager.jvm-cache.mode": "off"}).jvm_cache_root() is None
    assert Configuration().jvm_cache_root("off") is None
    named = Configuration({"taskmanager.jvm-cache.directory": "/opt/caches"})
    assert named.jvm_cache_root() == Path("/opt/caches")
    with pytest.raises(ConfigError, match="neither auto nor off"):
        Configuration({"taskmanager.jvm-cache.mode": "on"})


# ---- the builder ----


def test_one_builder_at_a_time(machine: Machine) -> None:
    machine.root.mkdir(mode=0o700)
    with (machine.root / "lock").open("w") as other:
        jvm_cache_builder._take(other.fileno(), machine.root)
        with pytest.raises(BusyError):
            asyncio.run(build(machine.cache()))


def test_a_place_that_cannot_be_written_is_said_in_one_line(machine: Machine) -> None:
    machine.root = machine.bridge / "caches"
    with pytest.raises(EnvironmentProblem, match=r"cannot|Not a directory"):
        asyncio.run(build(machine.cache()))
    assert not machine.cache().start()
    assert "cannot write" in unwritable(machine.root)


def test_a_full_disk_is_noticed_before(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_cache_builder, "_LEAST_DISK_BYTES", 2**60)
    with pytest.raises(EnvironmentProblem, match="free"):
        asyncio.run(build(machine.cache()))
    assert [path.name for path in machine.root.iterdir()] == ["lock"]


# ---- the keeper ----

QUICK = KeeperPolicy(quiet_s=0.05, look_s=0.01, pause_s=0.01)
WAIT_S = 30.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def builder_that(does: str, log: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, sys, time\nopen({str(log)!r}, 'a').write('%d\\n' % os.getpid())\n{does}")


def starts(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_nothing_is_made_before_a_process_was_started_nor_while_the_machine_is_busy(tmp_path: Path) -> None:
    log = tmp_path / "log"
    looks = [0]

    def busy(_policy: KeeperPolicy) -> bool:
        looks[0] += 1
        return looks[0] < 5

    async def run() -> None:
        keeper = CacheKeeper(tmp_path, lambda: True, QUICK, argv=builder_that("sys.exit(0)", log), busy=busy)
        assert looks == [0]
        keeper.process_started(cached=False)
        assert keeper._task is not None
        await until(keeper._task.done)
        await keeper.close()

    asyncio.run(run())
    assert looks[0] >= 5
    assert len(starts(log)) == 1


def test_a_process_that_starts_puts_it_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    policy = KeeperPolicy(quiet_s=3600, look_s=0.01)
    looks = [0]

    def busy(_policy: KeeperPolicy) -> bool:
        looks[0] += 1
        return False

    async def run() -> None:
        keeper = CacheKeeper(tmp_path, lambda: True, policy, argv=builder_that("", log), busy=busy)
        keeper.process_started(cached=False)
        task = keeper._task
        await asyncio.sleep(0)
        keeper.process_started(cached=False)
        assert keeper._task is task
        await keeper.close()

    asyncio.run(run())
    assert starts(log) == []


def test_none_is_made_where_none_is_wanted(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run() -> None:
        keeper = CacheKeeper(tmp_path, lambda: False, QUICK, argv=builder_that("", log), busy=lambda _policy: False)
        keeper.process_started(cached=False)
        assert keeper._task is not None
        await until(keeper._task.done)

    asyncio.run(run())
    assert starts(log) == []


@pytest.mark.parametrize(("code", "expected"), [(Code.TOO_SLOW, 3), (Code.FAILED, 1), (Code.MADE, 1)])
def test_how_often_it_is_tried(tmp_path: Path, code: Code, expected: int) -> None:
    log = tmp_path / "log"
    argv = builder_that(f"sys.exit({int(code)})", log)

    async def run() -> None:
        keeper = CacheKeeper(tmp_path, lambda: True, QUICK, argv=argv, busy=lambda _policy: False)
        keeper.process_started(cached=False)
        assert keeper._task is not None
        await until(keeper._task.done)

    asyncio.run(run())
    assert len(starts(log)) == expected


def test_who_finds_another_builder_at_work_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = [0]

    def wanted() -> bool:
        found[0] += 1
        return found[0] < 6

    async def run() -> None:
        argv = builder_that(f"sys.exit({int(Code.BUSY)})", log)
        keeper = CacheKeeper(tmp_path, wanted, QUICK, argv=argv, busy=lambda _policy: False)
        keeper.process_started(cached=False)
        assert keeper._task is not None
        await until(keeper._task.done)

    asyncio.run(run())
    assert len(starts(log)) == 5


def test_a_cache_that_was_removed_is_made_again_but_a_failure_is_not_repeated(tmp_path: Path) -> None:
    log, code = tmp_path / "log", tmp_path / "code"
    argv = builder_that(f"sys.exit(int(open({str(code)!r}).read()))", log)

    async def run() -> None:
        keeper = CacheKeeper(tmp_path, lambda: True, QUICK, argv=argv, busy=lambda _policy: False)
        for number, (result, cached, expected) in enumerate(
            ((Code.MADE, False, 1), (Code.MADE, True, 1), (Code.FAILED, False, 2), (Code.MADE, False, 2))
        ):
            code.write_text(str(int(result)))
            keeper.process_started(cached=cached)
            assert keeper._task is not None
            await until(keeper._task.done)
            assert len(starts(log)) == expected, number

    asyncio.run(run())


@pytest.mark.parametrize("deaf", [False, True])
def test_a_builder_ends_with_its_worker(tmp_path: Path, deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.spark.jvm_cache_keeper._END_GRACE_S", 0.2)
    log, ready = tmp_path / "log", tmp_path / "ready"
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""
    argv = builder_that(f"{ignore}open({str(ready)!r}, 'w').close()\ntime.sleep(600)", log)

    async def run() -> None:
        keeper = CacheKeeper(tmp_path, lambda: True, QUICK, argv=argv, busy=lambda _policy: False)
        keeper.process_started(cached=False)
        await until(ready.exists)
        await keeper.close()

    asyncio.run(run())
    assert [psutil.pid_exists(pid) for pid in starts(log)] == [False]
