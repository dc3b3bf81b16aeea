"""A JobMaster's word to the Dispatcher: its state, repeated until acknowledged, and its result, made durable (B: F-06,
F-07).
"""

from __future__ import annotations

from slotwise.model.ids import DISPATCHER, JobId
from slotwise.model.job import JobResult, JobState
from slotwise.protocol.effects import Effects, PersistResult
from slotwise.protocol.messages import JobStatus
from slotwise.protocol.outbox import Outbox


class StatusLink:
    """Numbers the statuses of ``job``; the newest counts."""

    def __init__(self, job: JobId, out: Outbox) -> None:
        self.acknowledged = True
        self._job = job
        self._out = out
        self._seq = 0
        self._status: JobStatus | None = None

    def report(
        self, state: JobState, result: JobResult | None, released: bool, effects: Effects, waits: bool | None = None
    ) -> None:
        """Say something new. ``waits``: for a warm application, whether it is ready for its program."""
        self._seq += 1
        self.acknowledged = False
        self._status = JobStatus(self._job, self._seq, state, result, released, waits is not None, bool(waits))
        self._send(effects)

    def on_acknowledged(self, seq: int) -> None:
        """The Dispatcher has recorded the status ``seq``."""
        self.acknowledged = self.acknowledged or seq == self._seq

    def repeat(self, effects: Effects) -> None:
        """Say it again while it is not acknowledged."""
        if not self.acknowledged:
            self._send(effects)

    def _send(self, effects: Effects) -> None:
        assert self._status is not None
        if self._status.state.is_final and self._status.result is not None:
            # With every repetition: writing it may have failed before. Slots are given back in the same effects or
            # later, so a leader that comes after finds either the result or the process that ended.
            effects.persist.append(PersistResult(self._job, self._status.result, self._out.token))
        self._out.send(effects, DISPATCHER, self._status)
