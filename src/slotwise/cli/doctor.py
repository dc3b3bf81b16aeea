"""``slotwise doctor``: what this machine has and lacks, and what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import platformdirs
import psutil

from slotwise.cli.options import json_option
from slotwise.client import DEFAULT_PORT, state_directory
from slotwise.model.errors import SlotwiseError
from slotwise.model.resources import GIB, format_bytes

_LEAST_MEMORY_BYTES = 4 * GIB
_LEAST_DISK_BYTES = 2 * GIB


@dataclass(frozen=True)
class Finding:
    """One check. ``status``: ok, warning (works, but), or problem (does not work)."""

    check: str
    status: str
    found: str
    todo: str = ""


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check this machine: Java, Python, Spark, pipelines, bridge, JVM cache, warm starts, memory, disk, ports. Exit
    code 1 when something is missing.

    \b
    Examples:
      slotwise doctor
      slotwise doctor --json
    """
    findings = [check() for check in CHECKS]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        marks = {"ok": "✓", "warning": "!", "problem": "✗"}
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            click.echo(f"{marks[finding.status]} {finding.check.ljust(width)}  {finding.found}")
            if finding.todo:
                click.echo(f"  {' ' * width}  → {finding.todo}")
    return 1 if any(finding.status == "problem" for finding in findings) else 0


def _python() -> Finding:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < (3, 11):
        return Finding("Python", "problem", found, "install Python 3.11 or newer")
    return Finding("Python", "ok", found)


def _java() -> Finding:
    from slotwise.spark.home import find_spark
    from slotwise.spark.java import find_java

    try:
        java = find_java(spark_version=find_spark().version)
    except SlotwiseError as error:
        return Finding("Java", "problem", str(error), "install a JDK 17 or newer, or: pip install 'slotwise[java]'")
    return Finding("Java", "ok", f"{java.major} at {java.path} ({java.source})")


def _spark() -> Finding:
    from slotwise.spark.home import find_spark

    try:
        spark = find_spark()
    except SlotwiseError as error:
        return Finding("Spark", "problem", str(error), "pip install 'pyspark>=4.0'")
    return Finding("Spark", "ok", f"pyspark {spark.version} at {spark.path}")


def _pipelines() -> Finding:
    from importlib.util import find_spec

    # What Spark Connect and pyspark's pipelines need beside pyspark itself.
    modules = ("pyspark.pipelines", "grpc", "grpc_status", "google.rpc", "zstandard", "pandas", "pyarrow", "yaml")
    missing = [name for name in modules if not _can_find(find_spec, name)]
    if missing:
        found = f"programs work, pipeline projects do not: there is no {', '.join(missing)}"
        return Finding("Pipelines", "warning", found, "pip install 'slotwise[pipelines]'")
    return Finding("Pipelines", "ok", "Spark Declarative Pipelines can run")


def _can_find(find_spec: Callable[[str], object], name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def _bridge() -> Finding:
    from slotwise.spark.bridge_jar import bridge_jar
    from slotwise.spark.home import find_spark
    from slotwise.spark.java import find_java

    try:
        spark = find_spark()
        jar = bridge_jar(spark, find_java(spark_version=spark.version))
    except SlotwiseError as error:
        return Finding("Bridge", "problem", str(error), "see what is said of Java and Spark above")
    return Finding("Bridge", "ok", str(jar))


def _jvm_cache() -> Finding:
    import asyncio

    from slotwise.config import load
    from slotwise.spark.jvm_cache import describe, unwritable
    from slotwise.spark.jvm_cache_builder import find_cache, proved

    name = "JVM cache"
    try:
        root = load().jvm_cache_root()
        if root is None:
            return Finding(name, "ok", "switched off (taskmanager.jvm-cache.mode)")
        cache = find_cache(root)
    except SlotwiseError as error:
        return Finding(name, "warning", str(error), "JVMs start without; see what is said of Java and Spark above")
    status = cache.status()
    match status.state:
        case "ready":
            try:
                asyncio.run(proved(cache))
            except SlotwiseError as error:
                return Finding(name, "warning", str(error), "JVMs start without; try: slotwise cache build")
            return Finding(name, "ok", f"works: {describe(status)}")
        case "missing":
            if reason := unwritable(root):
                return Finding(
                    name, "warning", reason, "JVMs start without; or name another: -D taskmanager.jvm-cache.directory"
                )
            later = "a worker makes one in the background when it has run a job, or now: slotwise cache build"
            return Finding(name, "ok", "possible, none yet", later)
        case "failed":
            return Finding(name, "warning", status.reason, "JVMs start without; try again: slotwise cache build")
        case "damaged":
            return Finding(
                name, "warning", f"{status.folder}: {status.reason}", "made anew by a worker or: slotwise cache build"
            )
    return Finding(name, "warning", status.reason, "JVMs start without")


def _warm_units() -> Finding:
    from slotwise.config import load
    from slotwise.spark.home import find_spark
    from slotwise.spark.java import FIRST_WITH_CHDIR, find_java
    from slotwise.spark.launcher import default_shapes

    name = "Warm starts"
    try:
        drivers, executors = load().warm_units()
        java = find_java(spark_version=find_spark().version)
    except SlotwiseError as error:
        return Finding(name, "warning", str(error), "see what is said of Java and Spark above")
    if not drivers and not executors:
        return Finding(name, "ok", "switched off (taskmanager.warm.mode)")
    if not hasattr(os, "mkfifo"):
        return Finding(name, "warning", "this system has no named pipes", "drivers and executors start when needed")
    sizes = {shape.role: shape.profile.memory_bytes for shape in default_shapes()}
    need = sizes["driver"] * min(drivers, 1) + sizes["executor"] * min(executors, 1)
    found = f"on workers with {format_bytes(need)} free beside their slots (slotwise workers shows them)"
    if java.major < FIRST_WITH_CHDIR:
        advice = "files that a job's own Java code opens by relative names need Java 22; see docs/warm-starts.md"
        return Finding(name, "ok", f"{found}; Java {java.major}", advice)
    return Finding(name, "ok", found)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{format_bytes(memory.total)} in all, {format_bytes(memory.available)} available"
    if memory.available < _LEAST_MEMORY_BYTES:
        need = f"a driver and two executors with Spark's defaults take {format_bytes(_LEAST_MEMORY_BYTES)}"
        return Finding("Memory", "warning", found, f"{need}; use smaller ones (--driver-memory, --executor-memory)")
    return Finding("Memory", "ok", found)


def _cores() -> Finding:
    return Finding("Cores", "ok", f"{os.cpu_count()} (slots count cores for placing; they do not fence them off)")


def _disk() -> Finding:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    found = f"{format_bytes(free)} free in {tempfile.gettempdir()}"
    if free < _LEAST_DISK_BYTES:
        return Finding("Disk", "warning", found, "shuffles and logs need room: free some, or set TMPDIR")
    return Finding("Disk", "ok", found)


def _directories() -> Finding:
    places = {"state": state_directory(), "cache": Path(platformdirs.user_cache_dir("slotwise"))}
    for name, path in places.items():
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            return Finding(
                "Folders",
                "problem",
                f"cannot write the {name} folder {path}: {error.strerror}",
                f"make {path} writable",
            )
    return Finding("Folders", "ok", ", ".join(str(path) for path in places.values()))


def _ports() -> Finding:
    try:
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
    except OSError as error:
        return Finding("Ports", "problem", f"no port can be bound on 127.0.0.1: {error}", "allow loopback")
    try:
        with socket.socket() as executor_address:
            executor_address.bind(("127.1.0.1", 0))
    except OSError:
        return Finding("Ports", "warning", "127.1.0.1 cannot be bound", "executors on one host share its name here")
    with socket.socket() as default:
        default.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            default.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return Finding(
                "Ports",
                "warning",
                f"the master's default port {DEFAULT_PORT} is in use",
                "fine if it is yours; else --port",
            )
    return Finding("Ports", "ok", f"loopback works, the master's default port {DEFAULT_PORT} is free")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _java,
    _spark,
    _pipelines,
    _bridge,
    _jvm_cache,
    _warm_units,
    _memory,
    _cores,
    _disk,
    _directories,
    _ports,
)
