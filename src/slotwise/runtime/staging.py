"""Puts what a job's client has uploaded into a slot's folder, before the slot's process starts.

::

    <slot>/job/…                 the files, a copy of the slot's own: all of them for a driver, the shared ones for an
                                 executor; where a driver works whose job has no other working directory
    <slot>/.environment          a link to the job's Python environment, also in job/
    <slot>/<process>.setup.log   what was fetched and built

The link has the same name in every slot. Its relative path is what executors call the job's interpreter: Spark sends
them the text that holds at the driver."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from slotwise.model.errors import EnvironmentProblem, UsageError
from slotwise.model.resources import format_bytes
from slotwise.model.uploads import Uploads, read_manifest
from slotwise.runtime.archives import archive_fault
from slotwise.runtime.blob_cache import BlobCache
from slotwise.runtime.clock import monotonic
from slotwise.runtime.environments import Environments

FOLDER = "job"
LINK = ".environment"
PYTHON = f"{LINK}/bin/python"


@dataclass(frozen=True)
class Staged:
    """What was put into a slot. ``folder``: of the files; ``python``: the interpreter of the environment, if there is
    one; ``entries``: the names of all that lies in the slot's folder because of it.
    """

    folder: Path
    python: Path | None
    entries: frozenset[str]


class Staging:
    """See the module's head."""

    def __init__(self, blobs: BlobCache, environments: Environments) -> None:
        self._blobs = blobs
        self._environments = environments
        self._sound: set[str] = set()

    async def stage(
        self,
        uploads: Uploads,
        slot_dir: Path,
        process: str,
        on_log: Callable[[Path], None],
        *,
        python: str | None,
        driver: bool,
        archives: Iterable[str] = (),
    ) -> Staged:
        """Fill ``slot_dir`` for ``process``. ``python``: what an environment is made with; ``archives``: the names of
        files that are going to be unpacked. ``on_log`` is told of the log when there is something in it.

        Raises :class:`EnvironmentProblem` with the reason why it cannot be.
        """
        log_file = slot_dir / f"{process}.setup.log"
        on_log(log_file)
        try:
            manifest = read_manifest(await self._blobs.read(uploads.manifest, "the list of the job's files"))
        except UsageError as error:
            raise EnvironmentProblem(str(error)) from error
        folder, link = slot_dir / FOLDER, slot_dir / LINK
        # A process before this one may have used the same slot, and changed what it had.
        await asyncio.to_thread(_clear, folder, link)
        folder.mkdir(mode=0o700)
        began, fetched, size = monotonic(), 0, 0
        wanted = [file for file in manifest.files if driver or file.shared]
        for file in wanted:
            target = folder / file.name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if await self._blobs.place(file, target):
                fetched, size = fetched + 1, size + file.size_bytes
            if file.executable:
                target.chmod(0o700)
        if fetched:
            with log_file.open("a", encoding="utf-8") as out:
                out.write(
                    f"fetched {fetched} of {len(wanted)} uploaded files, {format_bytes(size)}, in "
                    f"{monotonic() - began:.1f} s\n"
                )
        if driver:
            hashes = {file.name: file.sha256 for file in manifest.files}
            for name in archives:
                await self._check(name, hashes.get(name, ""), folder)
        interpreter = None
        if manifest.environment:
            venv = await self._environments.provide(manifest.environment, python, slot_dir, log_file)
            link.symlink_to(venv)
            if driver:
                # Sources of data are planned by a Python that the driver's JVM starts where it works.
                (folder / LINK).symlink_to(venv)
            interpreter = slot_dir / PYTHON
        entries = frozenset({FOLDER, LINK, log_file.name})
        return Staged(folder, interpreter, entries)

    async def _check(self, name: str, sha256: str, folder: Path) -> None:
        if sha256 in self._sound:
            return
        fault = await asyncio.to_thread(archive_fault, folder / name, name)
        if fault:
            raise EnvironmentProblem(f"the archive {name!r} is not unpacked: {fault}")
        self._sound.add(sha256)


def _clear(folder: Path, link: Path) -> None:
    link.unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
