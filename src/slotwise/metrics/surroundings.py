"""What metrics read of the master's process around its components, and how their steps are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from slotwise.dispatcher.uploads import UploadedFiles
from slotwise.ha.base import Grant
from slotwise.metrics.master import MasterMetrics, store_errors
from slotwise.model.ids import DISPATCHER, RESOURCE_MANAGER, Address
from slotwise.records import Records
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.runtime.actor import Actor
from slotwise.runtime.changes import Changes
from slotwise.runtime.events import EventLog
from slotwise.runtime.logs import LogStore

_COMPONENTS = {DISPATCHER: "dispatcher", RESOURCE_MANAGER: "resource-manager"}


class _Process(Protocol):
    """A master that leads."""

    events: EventLog
    logs: LogStore
    changes: Changes
    uploads: UploadedFiles
    _grant: Grant
    _records: Records

    @property
    def _actors(self) -> Mapping[Address, Actor]: ...

    @property
    def _workers(self) -> Mapping[Address, Any]: ...

    def not_ready(self) -> str:
        """Why it does not serve; empty when it does."""
        ...


class MasterGauges:
    """See the module's head."""

    def __init__(self, master: _Process) -> None:
        self._master = master

    def gauges(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        """(metric, values of its labels, value)."""
        master = self._master
        yield "slotwise_ready", (), 0 if master.not_ready() else 1
        yield "slotwise_leadership_epoch", (), master._grant.epoch
        waiting = {**dict.fromkeys(_COMPONENTS.values(), 0), "job-master": 0}
        for address, actor in master._actors.items():
            waiting[_COMPONENTS.get(address, "job-master")] += actor.waiting
        for component, count in waiting.items():
            yield "slotwise_mailbox_messages", (component,), count
        yield from store_errors(master._records.errors)
        yield "slotwise_store_unwritten_results", (), len(master._records.unwritten)
        yield "slotwise_event_write_errors_total", (), master.events.write_errors
        yield "slotwise_log_write_errors_total", (), master.logs.write_errors
        yield "slotwise_log_cut_bytes_total", (), master.logs.cut_bytes
        yield "slotwise_uploaded_files", (), master.uploads.count
        yield "slotwise_uploaded_bytes", (), master.uploads.size_bytes
        yield "slotwise_uploads_received_bytes_total", (), master.uploads.received
        yield "slotwise_event_stream_watchers", (), master.changes.watchers
        yield "slotwise_worker_streams", (), len(master._workers)


def timed_checks(manager: ResourceManager, metrics: MasterMetrics) -> Callable[[float], None]:
    """Takes the time of each of the ResourceManager's steps, and notes those that have made a check: machines have no
    clock.
    """
    before = manager.checks

    def on_step(seconds: float) -> None:
        nonlocal before
        if manager.checks != before:
            before = manager.checks
            metrics.checked(seconds)

    return on_step
