"""Python environments on a worker: built once, never half, bounded, and never taken from who uses them. With a real
installer, and packages made here."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from slotwise.model.errors import EnvironmentProblem
from slotwise.model.uploads import UploadedFile
from slotwise.runtime import environments as module
from slotwise.runtime.blob_cache import BlobCache
from slotwise.runtime.environments import Environments
from slotwise.runtime.installers import InstallPlan, install_plan
from tests.integration.wheels import requirements, wheel

NOBODY = lambda pid, there: None  # noqa: E731


class Folder:
    """Gives the files of a folder, by their hashes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def fetch(self, name: str, target: Path, what: str) -> None:
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        target.write_bytes(next(path.read_bytes() for path in paths if _sha(path) == name))


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def described(folder: Path, *names: str) -> list[UploadedFile]:
    return [UploadedFile(name, _sha(folder / name), (folder / name).stat().st_size) for name in names]


class Place:
    """A cache of environments in ``root``, and slots."""

    def __init__(self, root: Path, max_bytes: int = 10**9, timeout_s: float = 60.0) -> None:
        self.root = root
        self.source = root / "source"
        self.source.mkdir(parents=True, exist_ok=True)
        blobs = BlobCache(root / "cache", 10**9, Folder(self.source))
        self.made = Environments(root / "cache", blobs, max_bytes, timeout_s, "auto", NOBODY)

    def slot(self, name: str) -> Path:
        path = self.root / "slots" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    async def provide(self, files: Sequence[UploadedFile], slot: str) -> Path:
        slot_dir = self.slot(slot)
        return await self.made.provide(files, None, slot_dir, slot_dir / "setup.log")

    def log(self, slot: str) -> str:
        return (self.slot(slot) / "setup.log").read_text()

    def ready(self) -> list[str]:
        return sorted(path.parent.name for path in (self.root / "cache" / "environments").glob("*/ready.json"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Environments that a shell makes at once, by what the first file says; the list of those that were begun."""
    begun: list[Path] = []

    def plan(path: Path, venv: Path, python: str, installer: str) -> InstallPlan:
        begun.append(venv)
        make = f"mkdir -p {venv}/bin && ln -s {sys.executable} {venv}/bin/python && "
        return InstallPlan((("/bin/sh", "-c", make + path.read_text()),))

    monkeypatch.setattr(module, "install_plan", plan)
    return begun


def script(place: Place, text: str, name: str = "requirements.txt") -> list[UploadedFile]:
    (place.source / name).write_text(text)
    return described(place.source, name)


def test_an_environment_holds_what_its_file_says_and_nobody_can_write_into_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    wheel(place.source / "wheels", "onlyhere", "ANSWER = 42\n")
    requirements(place.source, "onlyhere", "pyspark>=4.0")
    files = described(place.source, "requirements.txt", "wheels/onlyhere-1.0-py3-none-any.whl")
    venv = asyncio.run(place.provide(files, "a"))
    code = "import onlyhere, sys; print(onlyhere.ANSWER, sys.prefix)"
    env = {**os.environ, "PYTHONPATH": ""}
    out = subprocess.run([venv / "bin/python", "-c", code], capture_output=True, text=True, env=env, check=True).stdout
    assert out.split() == ["42", str(venv)]
    assert not list(venv.glob("lib/*/site-packages/pyspark"))
    writable = [path for path in venv.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o222]
    assert writable == []
    assert "left out pyspark>=4.0" in place.log("a")
    assert "Successfully installed onlyhere-1.0" in place.log("a")


def test_two_who_need_the_same_at_once_have_it_built_once(tmp_path: Path, quick: list[Path]) -> None:
    first, second = Place(tmp_path), Place(tmp_path)
    files = script(first, "sleep 0.5")

    async def run() -> None:
        found = await asyncio.gather(
            first.provide(files, "a"), second.provide(files, "b"), first.provide(files, "c"), second.provide(files, "d")
        )
        assert len(set(found)) == 1

    asyncio.run(run())
    assert len(quick) == 1
    assert "waiting for another job" in "".join(first.log(slot) for slot in "abcd")


def test_a_failed_build_says_the_last_words_leaves_nothing_and_can_be_tried_again(
    tmp_path: Path, quick: list[Path]
) -> None:
    place = Place(tmp_path)
    files = script(place, f"echo no such package; test -e {tmp_path}/there")

    async def run() -> None:
        with pytest.raises(EnvironmentProblem, match=r"(?s)sh ended with code 1.*no such package"):
            await place.provide(files, "a")
        assert place.ready() == []
        assert not quick[0].exists()
        (tmp_path / "there").touch()
        assert await place.provide(files, "a") == quick[1]

    asyncio.run(run())
    assert len(place.ready()) == 1


def test_a_build_has_a_time_limit_and_can_be_cancelled(tmp_path: Path, quick: list[Path]) -> None:
    place = Place(tmp_path, timeout_s=0.3)
    # What the installer starts takes a while to die: until it has, it may write into what is being removed.
    large = f"import pathlib, time; m = b'm' * 300_000_000; pathlib.Path('{tmp_path}/large').touch(); time.sleep(60)"
    start = f'{sys.executable} -I -S -c "{large}"'
    files = script(place, f"echo still busy; {start} & echo $! > {tmp_path}/pid; wait")

    def installer_ended() -> bool:
        return not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cwd").exists()

    async def run() -> None:
        with pytest.raises(EnvironmentProblem, match=r"(?s)within 0.3 s.*still busy"):
            await place.provide(files, "a")
        assert installer_ended()
        (tmp_path / "large").unlink(missing_ok=True)
        patient = Place(tmp_path)
        task = asyncio.ensure_future(patient.provide(files, "a"))
        while not (tmp_path / "large").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert installer_ended()

    asyncio.run(run())
    assert place.ready() == []
    assert not quick[0].exists()


def test_the_environment_of_a_killed_worker_is_never_used_and_its_installer_is_waited_for(
    tmp_path: Path, quick: list[Path]
) -> None:
    place = Place(tmp_path)
    files = script(place, "true")
    key = asyncio.run(place.made._key(files, None))
    half = tmp_path / "cache" / "environments" / key
    (half / "venv" / "bin").mkdir(parents=True)
    (half / "venv" / "bin" / "python").symlink_to(sys.executable)
    (half / "venv" / "half").touch()
    (tmp_path / "cache" / "locks").mkdir(parents=True, exist_ok=True)
    lock = tmp_path / "cache" / "locks" / f"environment-{key}"
    code = (
        "import os, sys, time; from pathlib import Path; from slotwise.runtime.file_lock import try_lock\n"
        f"held = try_lock(Path({str(lock)!r})); os.set_inheritable(held, True)\n"
        "import subprocess; subprocess.Popen(['sleep', '0.7'], close_fds=False); print('locked', flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"locked\n"
    assert worker.wait() == -signal.SIGKILL
    began = time.monotonic()
    venv = asyncio.run(place.provide(files, "a"))
    assert time.monotonic() - began > 0.2
    assert not (venv / "half").exists()
    assert place.ready() == [key]


def test_environments_are_bounded_and_one_in_use_never_goes(tmp_path: Path, quick: list[Path]) -> None:
    place = Place(tmp_path, max_bytes=250_000)

    async def provide(number: int, slot: str) -> str:
        (place.source / "requirements.txt").write_text(texts[number])
        return (await place.provide(files[number], slot)).parent.name

    folder = tmp_path / "cache" / "environments"
    texts = [f"head -c 100000 /dev/zero > {folder}/$(ls -t {folder} | head -1)/venv/x # {n}" for n in range(4)]
    files = [script(place, text) for text in texts]

    async def run() -> None:
        keys = [await provide(0, "a"), await provide(1, "b")]
        (place.slot("a") / "setup.log").unlink()
        place.slot("a").rmdir()
        keys.append(await provide(2, "c"))
        # The first was used by nobody any more.
        assert place.ready() == sorted(keys[1:])
        keys.append(await provide(3, "d"))
        assert place.ready() == sorted(keys[1:]), "all of them are in use"
        (place.slot("b") / "setup.log").unlink()
        place.slot("b").rmdir()
        assert place.made.trim() == 1
        assert place.ready() == sorted(keys[2:])
        # Only now is it built again.
        assert await provide(0, "e") == keys[0]

    asyncio.run(run())
    assert len(quick) == 5


def test_an_environment_whose_interpreter_is_gone_is_built_anew(tmp_path: Path, quick: list[Path]) -> None:
    place = Place(tmp_path)
    files = script(place, "true")
    venv = asyncio.run(place.provide(files, "a"))
    (venv / "bin").chmod(0o700)
    (venv / "bin" / "python").unlink()
    asyncio.run(place.provide(files, "b"))
    assert len(quick) == 2


def test_an_interpreter_that_is_not_there_is_one_clear_error(tmp_path: Path, quick: list[Path]) -> None:
    place = Place(tmp_path)
    files = script(place, "true")
    with pytest.raises(EnvironmentProblem, match="/no/python does not run on this worker"):
        asyncio.run(place.made.provide(files, "/no/python", place.slot("a"), place.slot("a") / "log"))
    assert quick == []


def test_the_key_depends_on_content_names_and_interpreter(tmp_path: Path) -> None:
    place = Place(tmp_path)
    one = script(place, "a")
    two = script(place, "b")
    renamed = script(place, "a", "other.txt")

    async def keys() -> set[str]:
        return {await place.made._key(files, None) for files in (one, two, renamed, one)}

    assert len(asyncio.run(keys())) == 3


def test_what_installers_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tmp_path / "requirements.txt"
    plain.write_text("pyspark[pipelines]==4.1\npyspark==4.1 \\\n  --hash=sha256:00\npandas\npyspark-extension\n")
    lock = tmp_path / "uv.lock"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="needs uv on the worker's PATH"):
        install_plan(lock, tmp_path / "venv", "/usr/bin/python3", "auto")
    with pytest.raises(EnvironmentProblem, match="no uv on its PATH"):
        install_plan(plain, tmp_path / "venv", "/usr/bin/python3", "uv")
    plan = install_plan(plain, tmp_path / "venv", "/usr/bin/python3", "auto")
    assert plan.commands[0][:3] == ("/usr/bin/python3", "-m", "venv")
    assert "pip" in plan.commands[1]
    assert plan.notes == ("left out pyspark==4.1: pyspark is the cluster's own",)
    assert plain.read_text() == "pyspark[pipelines]==4.1\npandas\npyspark-extension\n"
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    (sync,) = install_plan(lock, tmp_path / "venv", "/usr/bin/python3", "auto").commands
    assert sync[:2] == ("/opt/uv", "sync")
    assert "--frozen" in sync
    make, install = install_plan(plain, tmp_path / "venv", "/usr/bin/python3", "auto").commands
    assert make[:2] == ("/opt/uv", "venv")
    assert install[:3] == ("/opt/uv", "pip", "install")
    assert json.dumps(install_plan(plain, tmp_path / "venv", "p", "pip").commands).count("uv") == 0
