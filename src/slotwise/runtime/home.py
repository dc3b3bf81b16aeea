"""A worker's directory: who the worker is, which slots it has made, and what an earlier process of it has left there
(B: ST-09).

::

    <base>/<worker id>/lock            held by the worker for life
                       owner.json      the process that held it last
                       worker.json     WorkerRecord
                       children.json   the groups it has started
                       slots/<allocation>/slot.json   SlotRecord, readable by the owner only

A worker that starts takes over an abandoned directory whose keepers still live and whose slots fit into it. Nobody
touches other directories with living keepers: their worker may be about to come back as well, and if it does not, the
keepers end what they keep and remove it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from slotwise.model.errors import UsageError
from slotwise.model.ids import Address, AllocationId, JobId, LeaderToken, WorkerId
from slotwise.model.process import ExecutorIdentity
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.runtime.children import kill_marked, sweep
from slotwise.runtime.kept import MARK, Kept, mark_of
from slotwise.runtime.ownership import LOCK_FILE, Hold, claim, hold, is_abandoned

log = structlog.get_logger(__name__)

_ABANDONED_WAIT_S = 10.0
"""For one's own directory it is worth to wait until the last keeper has removed what was in it."""


class WorkerRecord(msgspec.Struct, frozen=True):
    """A worker, beyond the life of its process. ``incarnation`` counts its processes from 1. ``bridge_port``: the
    loopback port under which drivers' JVMs look for it, 0 while there is none.
    """

    worker: WorkerId
    incarnation: int
    host: str
    total: ResourceProfile
    bridge_port: int = 0


class CommandRecord(msgspec.Struct, frozen=True):
    """A command and its keeper; ``keeper_birth`` as of :func:`slotwise.runtime.children.birth`. ``ordered``: false
    while it is a process that waited and may not have been told what to be.
    """

    name: str
    keeper: int
    keeper_birth: float | None
    ordered: bool = True


class SlotRecord(msgspec.Struct, frozen=True):
    """A slot and the process deployed into it. ``expected``: how many commands make the process; ``commands`` those
    begun. ``logs``: names of its log files. ``remembered``: what the launcher must know of it (holds secrets).
    """

    allocation: AllocationId
    job: JobId
    profile: ResourceProfile
    job_master: Address
    job_master_token: LeaderToken
    process: str
    executor: ExecutorIdentity | None = None
    expected: int = 0
    commands: tuple[CommandRecord, ...] = ()
    logs: tuple[str, ...] = ()
    remembered: dict[str, Any] = msgspec.field(default_factory=dict)

    def kept(self, slot_dir: Path) -> list[Kept]:
        """Its commands, as this process finds them."""
        return [Kept(slot_dir, command.name, command.keeper, command.keeper_birth) for command in self.commands]


class WorkerHome:
    """The directory of this process's worker, locked. ``left``: the slots that an earlier process has left."""

    def __init__(self, directory: Path, held: Hold, record: WorkerRecord, left: tuple[SlotRecord, ...] = ()) -> None:
        self.directory = directory
        self.record = record
        self.left = left
        self._hold = held

    @property
    def lock(self) -> Path:
        """The file that is locked while this process lives."""
        return self.directory / LOCK_FILE

    def note_bridge(self, port: int) -> None:
        """Record the port on which drivers' JVMs report, before any is started."""
        self.record = msgspec.structs.replace(self.record, bridge_port=port)
        _write(self.directory / "worker.json", self.record)

    def remove(self) -> None:
        """The worker ends for good, and nothing runs in it any more."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._hold.release()


def settle(
    base: Path, worker: WorkerId | None, total: ResourceProfile, host: str, fresh_id: Callable[[], WorkerId]
) -> WorkerHome:
    """The home of a worker of size ``total``, reached as ``host``: that of ``worker`` below ``base``; without a name
    that of one that was left with something alive in it, else a new one.

    Raises :class:`UsageError` when a worker of that name runs.
    """
    if worker is None:
        for directory in _directories(base):
            if is_abandoned(directory) and _record(directory) is not None and _alive(slot_records(directory)):
                home = _take(directory, total, host, adopting=True)
                if home is not None:
                    return home
        worker = fresh_id()
    home = _take(base / worker, total, host, adopting=False)
    if home is None:
        raise UsageError(f"a worker {worker} runs already in {base / worker}; give another --worker-id or --directory")
    return home


def _take(directory: Path, total: ResourceProfile, host: str, *, adopting: bool) -> WorkerHome | None:
    """Lock a directory and become its worker; None when another process was faster, or there is nothing to adopt and
    ``adopting`` was the aim.
    """
    patient = not adopting and is_abandoned(directory)
    held = hold(directory, _ABANDONED_WAIT_S) if patient else hold(directory)
    if held is None:
        return None
    before = _record(directory)
    left = slot_records(directory)
    fit = (
        before is not None
        and before.worker == directory.name
        and before.host == host
        and _alive(left)
        and fits(sum((slot.profile for slot in left), ZERO), total)
    )
    if adopting and not fit:
        held.release()
        return None
    claim(directory)
    incarnation = 1 if before is None else before.incarnation + 1
    record = WorkerRecord(
        WorkerId(directory.name), incarnation, host, total, before.bridge_port if fit and before else 0
    )
    # On disk before it is used: a third process must not count as the second.
    _write(directory / "worker.json", record)
    if not fit:
        end_remains(directory)
        shutil.rmtree(directory / "slots", ignore_errors=True)
        return WorkerHome(directory, held, record)
    end_remains(directory, left)
    log.info("adopting what an earlier process has left", worker=record.worker, slots=len(left))
    return WorkerHome(directory, held, record, left)


def slot_records(directory: Path) -> tuple[SlotRecord, ...]:
    """The slots below a worker's directory in which a process was begun."""
    found = []
    for file in sorted((directory / "slots").glob("*/slot.json")):
        try:
            record = msgspec.json.decode(file.read_bytes(), type=SlotRecord)
        except (OSError, msgspec.DecodeError) as error:
            log.error("a slot's record cannot be read; what ran in it will be ended", file=str(file), error=str(error))
            continue
        if record.commands and record.allocation == file.parent.name:
            found.append(record)
    return tuple(found)


def write_slot(slot_dir: Path, record: SlotRecord) -> None:
    """Record a slot, readable by this user only."""
    _write(slot_dir / "slot.json", record)


def end_remains(directory: Path, adopted: tuple[SlotRecord, ...] = ()) -> int:
    """Kill what is left of the processes of a dead worker, but for the slots that are ``adopted``; returns how many
    groups and detached processes there were. Remove the other slots' directories.
    """
    spared = {command.keeper for slot in adopted for command in slot.commands}
    killed = sweep(directory / "children.json", spared)
    slots = directory / "slots"
    # A slot's directory may be a link to another beside it.
    adopted_marks = {mark_of(slots / slot.allocation) for slot in adopted}
    rest = [path for path in _directories(slots) if mark_of(path) not in adopted_marks]
    if rest:
        killed += kill_marked(MARK, {mark_of(path) for path in rest})
    for path in rest:
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        for path in slots.iterdir():
            if path.is_symlink() and not path.exists():
                path.unlink()
    return killed


def remove_slot(slot_dir: Path) -> None:
    """Remove a slot's directory, and what it links to where it is a link."""
    target = mark_of(slot_dir)
    if slot_dir.is_symlink():
        slot_dir.unlink()
    shutil.rmtree(target, ignore_errors=True)


def sweep_stale(base: Path, *, spare_kept: bool = True) -> None:
    """End and remove what dead workers left below ``base``: their processes, then their directories.

    ``spare_kept``: not where keepers live, since these end what they keep in their own time.
    """
    for directory in _directories(base):
        if not is_abandoned(directory) or (spare_kept and _alive(slot_records(directory))):
            continue
        held = hold(directory)
        if held is not None:
            end_remains(directory)
            shutil.rmtree(directory, ignore_errors=True)
            held.release()


def _directories(base: Path) -> Iterator[Path]:
    try:
        found = sorted(path for path in base.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return
    yield from found


def _alive(slots: tuple[SlotRecord, ...]) -> bool:
    return any(
        Kept(Path(), command.name, command.keeper, command.keeper_birth).alive
        for slot in slots
        for command in slot.commands
    )


def _record(directory: Path) -> WorkerRecord | None:
    try:
        return msgspec.json.decode((directory / "worker.json").read_bytes(), type=WorkerRecord)
    except (OSError, msgspec.DecodeError):
        return None


def _write(file: Path, record: WorkerRecord | SlotRecord) -> None:
    partial = file.with_name(f"{file.name}.partial")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
        made.write(msgspec.json.encode(record))
    partial.replace(file)
