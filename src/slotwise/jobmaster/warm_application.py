"""A JobMaster's side of a warm application: it is nobody's job yet, and nobody hears of it but the Dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.jobmaster.admission import executors_to_start_with
from slotwise.model.job import JobState
from slotwise.protocol.effects import Effects

if TYPE_CHECKING:
    from slotwise.jobmaster.machine import JobMaster


class WarmApplication:
    """``waits``: its driver waits for a program, with all the executors that a job begins with."""

    def __init__(self, job: JobMaster) -> None:
        self.waits = False
        self._job = job

    def look(self, effects: Effects) -> None:
        """Tell the Dispatcher when it begins or ceases to wait."""
        job = self._job
        report = job.executors.report
        wanted = executors_to_start_with(job.spec, job.rescaling.bounds)
        ready = report is not None and report.waits and job.state is JobState.RUNNING
        waits = ready and job.executors.staying()[1] >= wanted
        if waits != self.waits:
            self.waits = waits
            if not job.state.is_final:
                job.report_status(effects)

    @staticmethod
    def hush(effects: Effects) -> None:
        """Nothing is recorded of it, so that no later master takes it for a job; and it has no history."""
        effects.persist.clear()
        effects.events.clear()
