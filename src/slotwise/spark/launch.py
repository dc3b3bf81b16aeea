"""The command lines, environments and files of Spark's processes (design, 'The data plane'). Pure: no I/O at all.

A driver is two processes in one slot: the JVM with Spark's gateway (:func:`driver_jvm_command`) and the Python program
that attaches to it (:func:`driver_program_command`). An executor is one JVM (:func:`executor_command`).

Settings and secrets travel in Java argument files, readable for their owner only, and in the environment: never on a
command line, which every user of the machine can read and whose length is limited.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slotwise.model.executor_conf import overhead_bytes
from slotwise.model.job import ExecutorSize, JobSpec
from slotwise.model.process import DriverProcess, ExecutorProcess
from slotwise.model.resources import GIB, MIB
from slotwise.spark.java import Java
from slotwise.spark.jvm_files import (
    ONE_LOG_CONTEXT,
    argument_file,
    log_configuration,
    names_log_configuration,
    names_log_contexts,
)
from slotwise.spark.jvm_flags import HOT_LATER, NO_CACHE, FromCache, fits
from slotwise.spark.jvm_modules import module_options

MASTER = "spark+slotwise://embedded"
GATEWAY_CLASS = "org.apache.spark.api.python.PythonGatewayServer"
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WARM_CLASS = "org.apache.spark.scheduler.cluster.slotwise.WarmJvm"
WARM_EXECUTOR_CLASS = "org.apache.spark.scheduler.cluster.slotwise.WarmExecutor"
RUNNER = Path(__file__).resolve().with_name("runner.py")
PIPELINE_PROGRAM = RUNNER.with_name("pipeline_program.py")

_SMALLEST_SERIAL_HEAP_BYTES = 512 * MIB
"""Below, the serial collector's survivor space pushes what Spark sees as heap under its floor of 450 MiB."""

_WARM_HEAP_BYTES = 48 * MIB

_PAGE_BYTES = 4 * MIB
_LARGE_PAGES_FROM_BYTES = 512 * MIB
_LARGE_PAGES_TO_BYTES = 16 * GIB
"""A task has 8192 pages at most, 32 GiB here."""

_GATEWAY_VARIABLES = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")
_INHERITED_TO_DROP = ("SPARK_HOME", "SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS", "SPARK_REMOTE")


@dataclass(frozen=True)
class SlotContext:
    """What the worker knows and a process specification does not.

    ``directory``: the slot's own, absolute, removed with the slot. ``host``: the name or address under which other
    workers reach this one. ``python``: the worker's interpreter, which has pyspark; ``python_zips``: pyspark and py4j
    as archives for interpreters that lack them (``SparkHome.python_zips``). ``base_env``: the environment that
    processes inherit (variables that start with SLOTWISE_ are left out). ``bridge_port`` and ``bridge_token``: where
    the driver's JVM finds its worker on loopback; executors need neither. ``jvm_cache``: how JVMs start from a
    cache of loaded classes, where they can. ``resource_addresses``: the addresses of extended resources (GPU indexes,
    …) that this slot may use, by name. ``executor_python``: what executors call the job's interpreter, relative to
    their slots' folders, where the job has its own. ``warm_rounds``: how much a JVM does for itself before it waits.
    """

    java: Java
    spark_home: Path
    bridge_jar: Path
    python: str
    directory: Path
    host: str
    job_id: str
    bridge_port: int = 0
    bridge_token: str = ""
    python_zips: tuple[Path, ...] = ()
    log_level: str = "WARN"
    jvm_cache: FromCache = NO_CACHE
    base_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    resource_addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    executor_python: str = ""
    warm_rounds: int = 2


@dataclass(frozen=True)
class Handover:
    """The same process as a word to a JVM that runs already (``WarmJvm``): ``key`` is what had to be settled at that
    JVM's start, the rest can be told. ``properties`` hold secrets.
    """

    key: tuple[str, ...]
    main: tuple[str, ...]
    properties: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class Command:
    """One process to start.

    ``env`` is the whole environment. ``files`` are texts to be written before the start, mode 0600, UTF-8, by their
    name inside the slot directory. ``env`` and ``files`` hold secrets. ``handover``: how a waiting JVM can become it,
    if one can.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    files: dict[str, str] = field(repr=False)
    cwd: str
    handover: Handover | None = None


# ---- the three processes ----


def driver_jvm_command(process: DriverProcess, slot: SlotContext) -> Command:
    """The driver's JVM. It lives for as long as its standard input is open: start it with a pipe and keep that."""
    spec = process.spec
    conf = driver_conf(process, slot)
    options = _words(conf.get("spark.driver.defaultJavaOptions")) + _words(conf.get("spark.driver.extraJavaOptions"))
    own_classes = _paths(conf.get("spark.driver.extraClassPath"))
    class_path = [
        *own_classes,
        *spark_class_path(slot),
        *(jar for jar in _list(conf.get("spark.jars")) if "://" not in jar),
    ]
    env = _base_env(slot)
    env.update(spec.env)
    cache = slot.jvm_cache if fits(slot.java, spec.driver.heap_bytes, options, env, own_classes) else NO_CACHE
    jvm = _Jvm(slot, class_path, spec.driver.heap_bytes, spec.driver.cores, options, cache, conf)
    env.update(
        SPARK_HOME=str(slot.spark_home),
        SPARK_LOCAL_DIRS=str(slot.directory / "local"),
        SLOTWISE_BRIDGE_PORT=str(slot.bridge_port),
        SLOTWISE_BRIDGE_TOKEN=slot.bridge_token,
        SLOTWISE_JOB_ID=slot.job_id,
        SLOTWISE_ATTEMPT=str(process.attempt),
        _PYSPARK_DRIVER_CONN_INFO_PATH=str(connection_file(process, slot)),
    )
    _with_address(env, slot.host)
    _with_library_path(env, _paths(conf.get("spark.driver.extraLibraryPath")))
    _with_python(env, spec, slot)
    # The gateway's own switch: 1 would start a Spark Connect server instead.
    env["SPARK_CONNECT_MODE"] = "0"
    return jvm.command("driver", (GATEWAY_CLASS,), env, spec.working_dir)


def driver_program_command(process: DriverProcess, slot: SlotContext, *, jvm_pid: int | None = None) -> Command:
    """The Python program. It may be started together with the JVM: it waits for the JVM, importing pyspark meanwhile.

    With ``jvm_pid`` it also notices when the JVM has ended before it was ready.
    """
    spec = process.spec
    env = _base_env(slot)
    env.update(spec.env)
    _with_python(env, spec, slot)
    if spec.python is not None and spec.python != slot.python:
        # That interpreter may have another pyspark, or none; the JVM is of this one.
        _prepend(env, "PYTHONPATH", [str(path) for path in slot.python_zips])
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.update(
        SPARK_HOME=str(slot.spark_home),
        _PYSPARK_DRIVER_CONN_INFO_PATH=str(connection_file(process, slot)),
        SLOTWISE_PY_FILES=json.dumps(spec.py_files),
        SLOTWISE_PY_DIR=str(slot.directory / "py-files"),
    )
    if jvm_pid is not None:
        env["SLOTWISE_JVM_PID"] = str(jvm_pid)
    program = (spec.program,) if spec.pipeline is None else (str(PIPELINE_PROGRAM), spec.program)
    words = ("--warm", str(slot.warm_rounds)) if process.warm else (*program, *spec.args)
    argv = (spec.python or slot.python, str(RUNNER), *words)
    return Command(argv, env, {}, spec.working_dir)


def executor_command(process: ExecutorProcess, slot: SlotContext) -> Command:
    """An executor. It runs in the slot's directory, because Spark puts the files of ``addFile`` where it runs."""
    launch = process.launch
    host = executor_host(slot.host, process.executor_id)
    options = [
        word.replace("{{APP_ID}}", process.app_id).replace("{{EXECUTOR_ID}}", process.executor_id)
        for word in launch.java_options
    ]
    env = _base_env(slot)
    env.update(launch.env)
    cache = slot.jvm_cache if fits(slot.java, process.size.heap_bytes, options, env, launch.class_path) else NO_CACHE
    class_path = [*launch.class_path, *spark_class_path(slot)]
    jvm = _Jvm(slot, class_path, process.size.heap_bytes, process.size.cores, options, cache, launch.startup_conf)
    if "SPARK_HOME" in launch.env:
        env["SPARK_HOME"] = str(slot.spark_home)
    env.setdefault("PYTHONHASHSEED", "0")
    # As in local mode: a module in the job's working directory can be imported by its functions, if this host has it.
    _append(env, "PYTHONPATH", [process.working_dir])
    _with_address(env, host)
    _with_library_path(env, launch.library_path)
    env.update(
        SPARK_LOCAL_DIRS=str(slot.directory / "local"),
        SPARK_EXECUTOR_ATTRIBUTE_SLOTWISE_TICKET=process.ticket,
        _SPARK_AUTH_SECRET=process.secret,
    )
    main = [EXECUTOR_CLASS, "--driver-url", process.driver_url, "--executor-id", process.executor_id]
    main += ["--hostname", host, "--bind-address", host, "--cores", str(process.task_slots or process.size.cores)]
    main += ["--app-id", process.app_id, "--resourceProfileId", str(process.profile_id)]
    files: dict[str, str] = {}
    resources = _resources_file(process, slot)
    if resources is not None:
        files["resources.json"] = resources
        main += ["--resourcesFile", str(slot.directory / "resources.json")]
    command = jvm.command("executor", main, env, str(slot.directory), files)
    if process.warm:
        # One that has waited needs no more; this is for one that is started now.
        argv = (*command.argv[: -len(main)], WARM_EXECUTOR_CLASS, str(slot.warm_rounds), *main[1:])
        command = dataclasses.replace(command, argv=argv)
    return command


def warm_command(slot: SlotContext, heap_bytes: int, cores: int, *, driver: bool) -> Command:
    """A JVM that waits to become a driver's or an executor's, after some work of its own, a driver's with its Python;
    the ``key`` of its handover says whose. The command lacks its last word: the folder where it waits.
    """
    env = _base_env(slot)
    env["SPARK_HOME"] = str(slot.spark_home)
    env["SPARK_LOCAL_IP"] = "127.0.0.1"
    env["SPARK_LOCAL_DIRS"] = str(slot.directory / "local")
    env["PYSPARK_PIN_THREAD"] = "true"
    cache = slot.jvm_cache if fits(slot.java, heap_bytes, (), env, ()) else NO_CACHE
    # The heap never shrinks below what it has at first, a part of the machine's memory if nobody says.
    start = FromCache((f"-Xms{_WARM_HEAP_BYTES // MIB}m", *cache.flags), cache.jars)
    jvm = _Jvm(slot, spark_class_path(slot), heap_bytes, cores, (), start, {})
    practice = _practice_file(slot) if driver else ""
    return jvm.command("warm", (WARM_CLASS, str(slot.warm_rounds), practice), env, str(slot.directory))


def warm_program_command(slot: SlotContext) -> Command:
    """A Python that has imported what drivers need, and waits for its program. Its last word is missing likewise."""
    env = _base_env(slot)
    env.setdefault("PYTHONHASHSEED", "0")
    env.setdefault("PYTHONUNBUFFERED", "1")
    env["SPARK_HOME"] = str(slot.spark_home)
    return Command((slot.python, str(RUNNER), "--wait", _practice_file(slot)), env, {}, str(slot.directory))


def _practice_file(slot: SlotContext) -> str:
    """Where a driver's JVM tells its Python how to practise; nothing where it does not, and would be waited for."""
    return str(slot.directory / "practice") if slot.warm_rounds else ""


# ---- what they share ----


def connection_file(process: DriverProcess, slot: SlotContext) -> Path:
    """Where the driver's JVM writes its port and secret, once the Python program can attach to it. Each attempt in the
    same slot has a file of its own: no program may attach to the JVM of an earlier one.
    """
    return slot.directory / f"gateway-{process.attempt}"


def executor_host(host: str, executor_id: str) -> str:
    """The host name of an executor on a worker reached as ``host``.

    Spark takes all shuffle output under one host name for lost when it loses one executor gracefully. Executors on
    loopback therefore get an address of their own each: Linux answers on all of 127.0.0.0/8.
    """
    try:
        loopback = host == "localhost" or ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        return host
    number = int(executor_id)
    return f"127.{1 + (number >> 16) % 254}.{(number >> 8) & 255}.{number & 255}"


def spark_class_path(slot: SlotContext) -> list[str]:
    """The class path of both JVMs. Spark's jars come first: what a cache of loaded classes holds for is the beginning
    of a class path, and it may have no folders in it. None of the jars has a file that a configuration folder has.
    """
    return [str(slot.bridge_jar), str(slot.spark_home / "jars" / "*"), *_configuration_folders(slot)]


def driver_conf(process: DriverProcess, slot: SlotContext) -> dict[str, str]:
    """The ``spark.*`` settings of the driver's JVM: defaults, the job's own, then what must agree with its sizes."""
    spec = process.spec
    conf = {
        "spark.master": MASTER,
        "spark.app.name": spec.name,
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
        "spark.driver.host": slot.host,
        "spark.driver.bindAddress": slot.host,
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true",
        "spark.storage.decommission.rddBlocks.enabled": "true",
        # Spark's default of 30 s is what an idle executor would otherwise take to leave.
        "spark.storage.decommission.replicationReattemptInterval": "1s",
        "spark.executor.decommission.forceKillTimeout": "60s",
        # After growing, all earlier shuffle output is on few executors: with Spark's preference for them every reduce
        # task would wait 3 s before it used a new one.
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    }
    if _has_large_pages(spec.executor):
        conf["spark.buffer.pageSize"] = f"{_PAGE_BYTES // MIB}m"
    if "spark.driver.host" in spec.conf:
        del conf["spark.driver.bindAddress"]
    conf.update(spec.conf)
    conf.update(_size_settings(spec))
    conf["spark.submit.deployMode"] = "client"
    conf["spark.authenticate.secret"] = process.secret
    # SPARK_LOCAL_DIRS says where; Spark warns if this is set beside it.
    conf.pop("spark.local.dir", None)
    for key, paths in (
        ("spark.submit.pyFiles", spec.py_files),
        ("spark.files", (*spec.files, *spec.py_files)),
        ("spark.archives", spec.archives),
        ("spark.jars", spec.jars),
    ):
        merged = list(dict.fromkeys([*_list(conf.get(key)), *paths]))
        if merged:
            conf[key] = ",".join(merged)
    if spec.python is not None and spec.python != slot.python:
        # Has executors put their pyspark on the path of that interpreter's workers (a second slower to start).
        conf["spark.executorEnv.SPARK_HOME"] = str(slot.spark_home)
    return conf


def _has_large_pages(executor: ExecutorSize) -> bool:
    """Whether Spark's own pages of memory are larger than ``_PAGE_BYTES``, and so many of those are enough for a task.

    Spark's are a sixteenth of what each core has, 64 MiB at most, and each operator of a task clears one for itself,
    though it had three rows.
    """
    per_core = executor.heap_bytes / executor.cores
    return not executor.off_heap_bytes and _LARGE_PAGES_FROM_BYTES <= per_core <= _LARGE_PAGES_TO_BYTES


def _size_settings(spec: JobSpec) -> dict[str, str]:
    driver, executor = spec.driver, spec.executor
    settings = {
        "spark.driver.cores": str(driver.cores),
        "spark.driver.memory": f"{driver.heap_bytes // MIB}m",
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": f"{executor.heap_bytes // MIB}m",
    }
    # Set only where it differs from the rule: an explicit overhead would hold for all resource profiles.
    for role, heap, overhead in (
        ("driver", driver.heap_bytes, driver.overhead_bytes),
        ("executor", executor.heap_bytes, executor.overhead_bytes),
    ):
        if overhead_bytes(spec.conf, role, heap) != overhead:
            settings[f"spark.{role}.memoryOverhead"] = f"{overhead // MIB}m"
    if executor.off_heap_bytes:
        settings["spark.memory.offHeap.enabled"] = "true"
        settings["spark.memory.offHeap.size"] = str(executor.off_heap_bytes)
    if executor.python_bytes:
        settings["spark.executor.pyspark.memory"] = f"{executor.python_bytes // MIB}m"
    for name, amount in executor.extended:
        settings[f"spark.executor.resource.{name}.amount"] = str(amount)
    if spec.dynamic_allocation:
        settings["spark.dynamicAllocation.enabled"] = "true"
        settings["spark.dynamicAllocation.minExecutors"] = str(spec.min_executors)
        settings["spark.dynamicAllocation.initialExecutors"] = str(spec.initial_executors)
        # The upper bound is the JobMaster's: it can change while the job runs, which Spark's own cannot.
        settings.pop("spark.dynamicAllocation.maxExecutors", None)
    else:
        # The regions of a pipeline say how many there are, not Spark.
        settings["spark.executor.instances"] = str(spec.initial_executors if spec.pipeline is None else 0)
    return settings


@dataclass(frozen=True)
class _Jvm:
    """What the JVMs have in common. ``user_options`` are the job's own, ``cache``: where it starts from."""

    slot: SlotContext
    class_path: Iterable[str]
    heap_bytes: int
    cores: int
    user_options: Iterable[str]
    cache: FromCache
    conf: Mapping[str, str]

    def command(
        self, name: str, main: Iterable[str], env: dict[str, str], cwd: str, files: Mapping[str, str] | None = None
    ) -> Command:
        slot, user = self.slot, list(self.user_options)
        class_path = os.pathsep.join(self.class_path)
        options = self._options()
        arguments = ["-cp", os.pathsep.join([*map(str, self.cache.jars), class_path])]
        arguments += ["-XX:+IgnoreUnrecognizedVMOptions", *HOT_LATER, *self.cache.flags, *options]
        # What Java unpacks there (native libraries, above all) stays when the JVM is killed; so it goes with the slot.
        arguments.append(f"-Djava.io.tmpdir={slot.directory}")
        all_files = dict(files or {})
        if not names_log_configuration(user):
            arguments.append(f"-Dlog4j2.configurationFile={(slot.directory / 'log4j2.properties').as_uri()}")
            all_files["log4j2.properties"] = log_configuration(slot.log_level)
        if not names_log_contexts(user):
            arguments.append(ONE_LOG_CONTEXT)
        arguments += [*user, *(f"-D{key}={value}" for key, value in sorted(self.conf.items()))]
        all_files[f"{name}.args"] = argument_file(arguments)
        argv = (str(slot.java.path), f"@{slot.directory / f'{name}.args'}", *main)
        handover = None
        if all(word in options or word.startswith("-Dspark.") for word in user):
            told = dict(word.removeprefix("-D").partition("=")[::2] for word in user if word not in options)
            key = (str(slot.java.path), class_path, slot.log_level, *options)
            handover = Handover(key, tuple(main), {**told, **self.conf})
        return Command(argv, env, all_files, cwd, handover)

    def _options(self) -> list[str]:
        options = [*module_options(self.slot.java.major), "-Djava.net.preferIPv6Addresses=false"]
        options.append(f"-Xmx{self.heap_bytes // MIB}m")
        chosen = any(word.startswith("-XX:+Use") and word.endswith("GC") for word in self.user_options)
        if self.cores == 1 and self.heap_bytes >= _SMALLEST_SERIAL_HEAP_BYTES and not chosen:
            options.append("-XX:+UseSerialGC")
        return options


def _base_env(slot: SlotContext) -> dict[str, str]:
    """The inherited environment without what belongs to Slotwise itself or would lead Spark astray."""
    dropped = (*_INHERITED_TO_DROP, *_GATEWAY_VARIABLES)
    env = {key: value for key, value in slot.base_env.items() if key not in dropped and not key.startswith("SLOTWISE_")}
    # Spark starts helpers with `java` of JAVA_HOME; they must not be of another version.
    env["JAVA_HOME"] = str(slot.java.path.parent.parent)
    return env


def _with_python(env: dict[str, str], spec: JobSpec, slot: SlotContext) -> None:
    python = spec.python or slot.python
    env.setdefault("PYTHONHASHSEED", "0")
    if "PYSPARK_PYTHON" not in spec.env:
        env["PYSPARK_PYTHON"] = slot.executor_python or spec.conf.get("spark.pyspark.python", python)
    env["PYSPARK_DRIVER_PYTHON"] = python


def _with_address(env: dict[str, str], host: str) -> None:
    """Spare Spark its guess at this machine's address, and users its warning of what it guessed."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return
    env.setdefault("SPARK_LOCAL_IP", host)


def _with_library_path(env: dict[str, str], entries: Iterable[str]) -> None:
    _prepend(env, "LD_LIBRARY_PATH", list(entries))


def _prepend(env: dict[str, str], name: str, entries: list[str]) -> None:
    joined = os.pathsep.join([*entries, *_paths(env.get(name))])
    if joined:
        env[name] = joined


def _append(env: dict[str, str], name: str, entries: list[str]) -> None:
    env[name] = os.pathsep.join([*_paths(env.get(name)), *entries])


def _configuration_folders(slot: SlotContext) -> list[str]:
    names = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    return [slot.base_env[name] for name in names if slot.base_env.get(name)]


def _resources_file(process: ExecutorProcess, slot: SlotContext) -> str | None:
    """Spark's own format for the addresses of resources; None if the worker names none (Spark then looks by script)."""
    given = [
        {"id": {"componentName": "spark.executor", "resourceName": name}, "addresses": slot.resource_addresses[name]}
        for name, _ in process.size.extended
        if slot.resource_addresses.get(name)
    ]
    return json.dumps(given) if given else None


def _words(text: str | None) -> list[str]:
    return shlex.split(text) if text else []


def _paths(text: str | None) -> list[str]:
    return [entry for entry in (text or "").split(os.pathsep) if entry]


def _list(text: str | None) -> list[str]:
    return [entry.strip() for entry in (text or "").split(",") if entry.strip()]
