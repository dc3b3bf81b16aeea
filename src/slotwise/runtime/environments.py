"""Python environments of jobs on a worker: built once for a content, for all workers of a user on a machine.

::

    <root>/environments/<key>/ready.json   written last: without it the rest is nothing
                              venv/        read-only once it is ready
                              inputs/      the files that it is made of
    <root>/uses/<key>/…                    links to the slots' folders that use it
    <root>/locks/environment-<key>         held while it is built or removed

The lock of a build is inherited by its installer, so that nobody begins anew while that of a killed worker still runs.
An environment is in use while a slot's folder of a link in ``uses`` is there, whoever made it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import signal
import stat
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from slotwise.model.errors import EnvironmentProblem
from slotwise.model.uploads import UploadedFile
from slotwise.runtime.blob_cache import BlobCache
from slotwise.runtime.children import signal_group, start_child, wait_exit, wait_group_gone
from slotwise.runtime.clock import monotonic
from slotwise.runtime.file_lock import locked, remove_locked, try_lock
from slotwise.runtime.installers import InstallPlan, install_plan
from slotwise.runtime.logs import tail_lines

log = structlog.get_logger(__name__)

FORMAT = 1
_READY = "ready.json"
_TOLD_LINES = 12
# Variables that would lead an installer into another environment than the one that it is to make.
_DROPPED = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "UV_PROJECT_ENVIRONMENT",
    "PIP_TARGET",
    "PIP_USER",
)
_DESCRIBE = (
    "import json,platform,sys,sysconfig;print(json.dumps([platform.python_implementation(),platform.python_version(),"
    "sysconfig.get_platform(),platform.libc_ver(),sys.base_prefix]))"
)


class Environments:
    """See the module's head. They hold ``max_bytes`` at most, those used longest ago go first and those in use never;
    a build has ``timeout_s`` (-1: any time). ``installer``: uv, pip, or auto. ``noted`` is told of each group of
    processes that is started (True) and has ended (False).
    """

    def __init__(
        self,
        root: Path,
        blobs: BlobCache,
        max_bytes: int,
        timeout_s: float,
        installer: str,
        noted: Callable[[int, bool], None],
    ) -> None:
        self._root = root / "environments"
        self._uses = root / "uses"
        self._locks = root / "locks"
        self._blobs = blobs
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._installer = installer
        self._noted = noted
        self._described: dict[str, list[object]] = {}

    async def provide(self, files: Sequence[UploadedFile], python: str | None, slot_dir: Path, log_file: Path) -> Path:
        """The folder of the environment that ``files`` describe, for the interpreter ``python`` (None: the worker's
        own), built now if it has not been. It stays as long as ``slot_dir`` does. ``log_file`` gets the progress of
        the build.

        Raises :class:`EnvironmentProblem` with the installer's last words; the next call tries again.
        """
        key = await self._key(files, python)
        folder, lock = self._root / key, self._locks / f"environment-{key}"
        for path in (self._root, self._uses, self._locks):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

        def say(text: str) -> None:
            with log_file.open("a", encoding="utf-8") as out:
                out.write(f"{text}\n")

        def on_wait() -> None:
            say("waiting for another job on this machine that builds the same environment")

        async with locked(lock, shared=True, on_wait=on_wait):
            if self._use(folder, slot_dir):
                return folder / "venv"
        async with locked(lock, on_wait=on_wait) as held:
            if not self._use(folder, slot_dir):
                began = monotonic()
                say(f"building the Python environment of {files[0].name} ({key[:12]})")
                await self._build(folder, files, python, held, log_file)
                say(f"built the Python environment in {monotonic() - began:.1f} s")
                self._use(folder, slot_dir)
        await asyncio.to_thread(self.trim)
        return folder / "venv"

    def _use(self, folder: Path, slot_dir: Path) -> bool:
        """Note that the slot uses a ready environment; false if it is not ready, or its interpreter is gone."""
        if not (folder / _READY).is_file() or not (folder / "venv" / "bin" / "python").exists():
            return False
        uses = self._uses / folder.name
        uses.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = uses / secrets.token_hex(8)
        link.symlink_to(slot_dir.absolute())
        os.utime(folder / _READY)
        return True

    # ------------------------------------------------------------------------------------------- building

    async def _build(
        self, folder: Path, files: Sequence[UploadedFile], python: str | None, lock: int, log_file: Path
    ) -> None:
        try:
            await asyncio.to_thread(_remove, folder)
            inputs = folder / "inputs"
            for file in files:
                target = inputs / file.name
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                await self._blobs.place(file, target)
            plan = install_plan(inputs / files[0].name, folder / "venv", python or sys.executable, self._installer)
            await self._run(plan, inputs, lock, log_file)
            size = await asyncio.to_thread(_seal, folder / "venv")
            _write_whole(folder / _READY, json.dumps({"size_bytes": size, "format": FORMAT}))
        except OSError as error:
            raise EnvironmentProblem(
                f"this worker cannot build the Python environment of {files[0].name}: {error.filename or folder}: "
                f"{error.strerror or error}"
            ) from error
        finally:
            if not (folder / _READY).is_file():
                # Not in a thread: that could not be waited for when this is being cancelled.
                with contextlib.suppress(OSError):
                    _remove(folder)

    async def _run(self, plan: InstallPlan, cwd: Path, lock: int, log_file: Path) -> None:
        deadline = monotonic() + self._timeout_s if self._timeout_s >= 0 else None
        env = {**_installer_env(os.environ), **plan.env}
        for line in plan.notes:
            with log_file.open("a", encoding="utf-8") as out:
                out.write(f"{line}\n")
        for argv in plan.commands:
            with log_file.open("ab") as output:
                process = start_child(argv, env=env, cwd=cwd, stdout=output, stderr=output, pass_fds=(lock,))
            self._noted(process.pid, True)
            try:
                left = None if deadline is None else max(0.0, deadline - monotonic())
                code = await asyncio.wait_for(wait_exit(process), left)
            except TimeoutError:
                raise EnvironmentProblem(
                    f"the Python environment was not built within {self._timeout_s:g} s "
                    f"(taskmanager.environments.build-timeout); its last words:{_last_words(log_file)}"
                ) from None
            finally:
                # Also what an installer has left of itself, and when this is being cancelled.
                signal_group(process.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    process.wait()
                if not await wait_group_gone(process.pid):
                    log.warning("what an installer has started does not end", group=process.pid)
                self._noted(process.pid, False)
            if code != 0:
                raise EnvironmentProblem(
                    f"the Python environment could not be built: {Path(argv[0]).name} ended with code {code}:"
                    f"{_last_words(log_file)}"
                )

    async def _key(self, files: Sequence[UploadedFile], python: str | None) -> str:
        parts = [FORMAT, await self._describe(python), [[file.name, file.sha256] for file in files]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    async def _describe(self, python: str | None) -> list[object]:
        """What an environment for this interpreter depends on."""
        if python is None or python == sys.executable:
            versions = platform.python_implementation(), platform.python_version()
            return [*versions, sysconfig.get_platform(), list(platform.libc_ver()), sys.base_prefix]
        if python not in self._described:
            try:
                process = await asyncio.create_subprocess_exec(
                    python, "-c", _DESCRIBE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
                )
                out, _ = await process.communicate()
                self._described[python] = json.loads(out)
            except (OSError, ValueError) as error:
                raise EnvironmentProblem(f"the job's interpreter {python} does not run on this worker") from error
        return self._described[python]

    # ------------------------------------------------------------------------------------------- going

    def trim(self) -> int:
        """Remove environments, those used longest ago first, until there is no more than there may be, or only such
        that are in use; returns how many went. Blocks.
        """
        ready = []
        for folder in self._root.iterdir():
            with contextlib.suppress(OSError, ValueError, KeyError):
                size = json.loads((folder / _READY).read_text())["size_bytes"]
                ready.append(((folder / _READY).stat().st_mtime, size, folder))
        total, removed = sum(size for _, size, _ in ready), 0
        for _, size, folder in sorted(ready):
            if total <= self._max_bytes:
                break
            lock = self._locks / f"environment-{folder.name}"
            held = try_lock(lock)
            if held is None:
                continue
            if self._in_use(folder.name):
                os.close(held)
                continue
            with contextlib.suppress(OSError):
                _remove(folder)
                shutil.rmtree(self._uses / folder.name, ignore_errors=True)
                total -= size
                removed += 1
                log.info("removed a Python environment", key=folder.name, size_bytes=size)
            remove_locked(lock, held)
        return removed

    def _in_use(self, key: str) -> bool:
        used = False
        with contextlib.suppress(FileNotFoundError):
            for link in (self._uses / key).iterdir():
                # The slot's folder may itself be a link.
                if os.path.lexists(link.readlink()):
                    used = True
                else:
                    link.unlink(missing_ok=True)
        return used


def _installer_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what is Slotwise's own: an installer may run code of the packages."""
    return {
        key: value
        for key, value in environment.items()
        if key not in _DROPPED and not key.startswith(("SLOTWISE_", "SPARK_", "PYSPARK_"))
    }


def _last_words(log_file: Path) -> str:
    lines = tail_lines((log_file,), _TOLD_LINES)
    return "".join(f"\n  {line}" for line in lines)


def _seal(folder: Path) -> int:
    """Take the right to write from everybody, so that no job changes what others use; returns the bytes in it."""
    total = 0
    for parent, folders, names in os.walk(folder):
        for name in (*names, *folders):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                total += status.st_size
                os.chmod(path, stat.S_IMODE(status.st_mode) & ~0o222)
    os.chmod(folder, stat.S_IMODE(os.lstat(folder).st_mode) & ~0o222)
    return total


def _remove(folder: Path) -> None:
    """Remove an environment; at any moment of it, what is left does not count as ready."""
    (folder / _READY).unlink(missing_ok=True)
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    if (folder / "venv").is_dir():
        os.chmod(folder / "venv", 0o700)
    if folder.exists():
        shutil.rmtree(folder)


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
