"""Flink's own slot matching (DefaultResourceAllocationStrategy of 2.3.0), run in a JVM on cases that we name.

`make flink-peer` fetches Flink's jars (330 MB, from PyPI, once) into the user's cache and compiles the small program
beside this file against them; without them there is no peer."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from slotwise.spark.java import find_java

VERSION = "2.3.0"
HOME = Path(platformdirs.user_cache_dir("slotwise")) / "peers" / f"flink-{VERSION}"
SOURCE = Path(__file__).parent / "flink" / "MatchingPeer.java"
CLASS = "org.apache.flink.runtime.resourcemanager.slotmanager.MatchingPeer"


Size = tuple[int, int]
"""(milli-cores, MiB)."""


@dataclass(frozen=True)
class Asked:
    """A case: each of ``jobs`` jobs asks for ``each`` slots of every size (None: the unknown profile). ``used``: what
    is in use on each worker; nothing when all are empty. ``spread``: Flink's mode SLOTS instead of NONE.
    """

    workers: int
    jobs: int
    each: int
    sizes: Sequence[Size | None]
    used: Sequence[Size] = ()
    spread: bool = False


@dataclass(frozen=True)
class Measured:
    """What Flink did with a case; the time is the best of its warm rounds."""

    time_s: float
    slots: int
    used_workers: int
    new_workers: int


def fetch() -> None:
    """Download Flink's jars and compile the program."""
    jars = HOME / "jars"
    if not jars.is_dir():
        with tempfile.TemporaryDirectory(prefix="flink-peer-") as folder:
            wanted = f"apache-flink-libraries=={VERSION}"
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-deps", "-d", folder, wanted], check=True)
            wheel = next(Path(folder).glob("*.whl"))
            unpacked = HOME / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.startswith("pyflink/lib/") and name.endswith(".jar"):
                        archive.extract(name, unpacked)
            (unpacked / "pyflink" / "lib").rename(jars)
            shutil.rmtree(unpacked)
    classes = HOME / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    # The compiler is a module of the JDK; a Java without it cannot run this.
    compiler = [_java(), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    subprocess.run([*compiler, "-cp", _class_path(), "-d", str(classes), str(SOURCE)], check=True)
    print(f"Flink {VERSION} is in {HOME}")


def available() -> bool:
    """Whether :func:`fetch` has been run."""
    return (HOME / "classes" / f"{CLASS.replace('.', '/')}.class").exists()


def measure(cases: Sequence[Asked], worker: Size, slot: Size, rounds: int) -> list[Measured | None]:
    """Run each case in a JVM of its own; None for each where Flink was not fetched."""
    return [_measure(one, worker, slot, rounds) if available() else None for one in cases]


def _measure(one: Asked, worker: Size, slot: Size, rounds: int) -> Measured:
    words = "+".join("unknown" if size is None else f"{size[0]}:{size[1]}" for size in one.sizes)
    mode = "SLOTS" if one.spread else "NONE"
    with tempfile.TemporaryDirectory(prefix="flink-peer-") as folder:
        used = Path(folder) / "used" if one.used else ""
        if isinstance(used, Path):
            used.write_text("".join(f"{cpu}:{memory}\n" for cpu, memory in one.used))
        argv = [_java(), "-Xmx4g", "-cp", f"{HOME / 'classes'}:{_class_path()}", CLASS, str(rounds)]
        argv += [f"{worker[0]}:{worker[1]}", f"{slot[0]}:{slot[1]}"]
        argv.append(f"{one.workers},{one.jobs},{one.each},{words},{mode},{used}")
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("measured "))
    _, time_ms, slots, taken, new = line.split()
    return Measured(float(time_ms) / 1e3, int(slots), int(taken), int(new))


def _class_path() -> str:
    return ":".join(str(jar) for jar in sorted((HOME / "jars").glob("*.jar")))


def _java() -> str:
    return str(find_java().path)


if __name__ == "__main__":
    fetch()
