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


def measure(
    cases: Sequence[tuple[int, int, int, Sequence[tuple[int, int] | None]]],
    worker: tuple[int, int],
    slot: tuple[int, int],
    rounds: int,
) -> list[Measured] | None:
    """Run (workers, jobs, slots of each size, sizes) in one JVM each; None where Flink was not fetched.

    Sizes are (milli-cores, MiB); None stands for the unknown profile."""
    if not available():
        return None
    found = []
    for workers, jobs, each, sizes in cases:
        words = "+".join("unknown" if size is None else f"{size[0]}:{size[1]}" for size in sizes)
        argv = [_java(), "-Xmx4g", "-cp", f"{HOME / 'classes'}:{_class_path()}", CLASS, str(rounds)]
        argv += [f"{worker[0]}:{worker[1]}", f"{slot[0]}:{slot[1]}", f"{workers},{jobs},{each},{words}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("measured "))
        _, time_ms, slots, used, new = line.split()
        found.append(Measured(float(time_ms) / 1e3, int(slots), int(used), int(new)))
    return found


def _class_path() -> str:
    return ":".join(str(jar) for jar in sorted((HOME / "jars").glob("*.jar")))


def _java() -> str:
    return str(find_java().path)


if __name__ == "__main__":
    fetch()
