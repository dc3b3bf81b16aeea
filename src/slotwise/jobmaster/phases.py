"""What a job does in each state of its life (FLIP-138's scheduler states): small classes, one a state.

A phase decides; the JobMaster (:mod:`slotwise.jobmaster.machine`) does the talking and keeps the books. Which phase
may follow which is the table in :mod:`slotwise.jobmaster.states`. A phase that is left takes its timers with it, so
that a stale one does nothing (B: A-03)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from slotwise.jobmaster.admission import Admission, admission, initial_requirements, minimum_possible
from slotwise.model.job import JobResult, JobState
from slotwise.protocol.effects import Effects, Event
from slotwise.protocol.messages import ProcessPhase, ProcessStatus, Shortage

if TYPE_CHECKING:
    from slotwise.jobmaster.machine import JobMaster
    from slotwise.jobmaster.slot_pool import HeldSlot


class Phase:
    """The behaviour that most states share. ``timers`` are those that only this phase uses."""

    state: ClassVar[JobState]
    timers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: JobMaster) -> None:
        self._job = job

    def enter(self, now: float, effects: Effects) -> None:
        """The job has just come into this state."""

    def advance(self, now: float, effects: Effects) -> None:
        """Do what has become possible or due; harmless to call at any time."""

    def on_timer(self, key: str, now: float, effects: Effects) -> None:
        """A timer of this phase has come up."""

    def on_hopeless(self, shortage: Shortage, now: float, effects: Effects) -> None:
        """Waiting cannot bring what is missing."""

    def driver_runs(self, now: float, effects: Effects) -> None:
        """The driver's process is up."""

    def driver_ended(self, status: ProcessStatus, now: float, effects: Effects) -> None:
        """The driver's process is over."""
        job = self._job
        if job.work.done or (status.exit_code == 0 and not job.work.unfinished):
            job.end(JobResult(JobState.FINISHED, 0, status.reason, status.log_tail), now, effects)
            return
        if job.work.reason:
            # It was about to end for this very reason.
            job.end(JobResult(JobState.FAILED, status.exit_code, job.work.reason, status.log_tail), now, effects)
            return
        early = job.work.unfinished if status.exit_code == 0 else ""
        reason = status.reason or early or f"the program ended with code {status.exit_code}"
        result = JobResult(JobState.FAILED, status.exit_code, reason, status.log_tail)
        killed = status.killed or (status.exit_code is not None and status.exit_code < 0)
        # A program's own failure is its own: only a strategy of the job covers it.
        job.restart_or_end(job.spec.restart or (job.config.restart if killed else None), result, now, effects)

    def driver_lost(self, slot: HeldSlot, reason: str, dead: bool, now: float, effects: Effects) -> None:
        """The driver's slot is lost; ``dead``: and what ran in it has certainly ended."""
        self._job.driver.slot = None

    def driver_gone(self, reason: str, now: float, effects: Effects) -> None:
        """The driver has certainly ended, and nobody can say how."""
        job = self._job
        if job.work.done:
            job.end(JobResult(JobState.FINISHED, 0), now, effects)
            return
        result = JobResult(JobState.FAILED, reason=f"the driver is gone: {reason}")
        job.restart_or_end(job.spec.restart or job.config.restart, result, now, effects)

    def fail(self, result: JobResult, now: float, effects: Effects) -> None:
        """The job cannot go on."""
        self._job.end(result, now, effects)

    def cancel(self, now: float, effects: Effects) -> None:
        """The job is to end."""
        self._job.go(Canceling(self._job), now, effects)


class Created(Phase):
    """Nothing has been done yet."""

    state = JobState.CREATED

    def on_timer(self, key: str, now: float, effects: Effects) -> None:
        """The one timer is ``start``."""
        self.start(now, effects)

    def start(self, now: float, effects: Effects) -> None:
        """Begin, or take over."""
        unseen = self._job.driver.unseen is not None
        self._job.begin(now, effects)
        self._job.go((Reconciling if unseen else WaitingForResources)(self._job), now, effects)

    def cancel(self, now: float, effects: Effects) -> None:
        """There is nothing to give back."""
        self._job.end(JobResult(JobState.CANCELED, reason="cancelled"), now, effects)


class WaitingForResources(Phase):
    """Declares what the job wants to start with, until enough of it is held (B: A-01, D-11)."""

    state = JobState.WAITING_FOR_RESOURCES
    timers = ("stabilise", "wait")

    def enter(self, now: float, effects: Effects) -> None:
        """The wait is bounded."""
        timeout_s = self._job.config.resource_wait_timeout_s
        if timeout_s >= 0:
            self._job.timers.set("wait", now + timeout_s)

    def advance(self, now: float, effects: Effects) -> None:
        """Start the driver: at once with all, after stabilisation with the minimum, never with less."""
        job = self._job
        job.require(initial_requirements(job.spec, job.rescaling.bounds), now, effects)
        allowed = self._admission()
        if allowed is Admission.ALL:
            job.go(CreatingExecutionGraph(job), now, effects)
        elif allowed is Admission.MINIMUM:
            job.timers.set_once("stabilise", now + job.config.stabilisation_s)

    def _admission(self) -> Admission:
        return admission(self._job.spec, self._job.rescaling.bounds, self._job.pool.slots.values())

    def on_timer(self, key: str, now: float, effects: Effects) -> None:
        """Stabilised, or waited for too long."""
        job = self._job
        if key == "stabilise":
            if self._admission() is not Admission.NONE:
                job.go(CreatingExecutionGraph(job), now, effects)
            return
        why = (
            "; ".join(shortage.detail for shortage in job.shortages)
            or "slots were given, but their workers did not offer them"
        )
        least = f"the minimum of a driver and {job.rescaling.bounds.least} executor(s)"
        reason = f"{least} was not there after {job.config.resource_wait_timeout_s:g} s: {why}"
        job.end(JobResult(JobState.FAILED, reason=reason), now, effects)

    def on_hopeless(self, shortage: Shortage, now: float, effects: Effects) -> None:
        """It matters only if what is missing is part of the minimum, and that is for the job to say (B: D-11)."""
        if not minimum_possible(self._job.spec, self._job.rescaling.bounds, self._job.shortages):
            self._job.end(JobResult(JobState.FAILED, reason=shortage.detail), now, effects)


class _Active(Phase):
    """A driver is there, or about to be."""

    def advance(self, now: float, effects: Effects) -> None:
        """Serve the driver's wishes."""
        self._job.work.serve(now, effects)

    def on_hopeless(self, shortage: Shortage, now: float, effects: Effects) -> None:
        """It may matter to a part of the job."""
        self._job.work.on_hopeless(shortage, now, effects)

    def driver_lost(self, slot: HeldSlot, reason: str, dead: bool, now: float, effects: Effects) -> None:
        """Unless it is dead its program may go on: no other may begin yet."""
        job = self._job
        if dead:
            job.driver.slot = None
            self.driver_gone(f"its worker is lost: {reason}", now, effects)
        else:
            job.driver.out_of_sight(slot.worker, reason, now)
            job.go(Reconciling(job), now, effects, reason=f"the driver's slot is lost: {reason}")

    def fail(self, result: JobResult, now: float, effects: Effects) -> None:
        """The driver is ended first."""
        if self._job.driver.slot is None:
            self._job.end(result, now, effects)
        else:
            self._job.go(Failing(self._job, result), now, effects)


class CreatingExecutionGraph(_Active):
    """The driver is being started in the slot that it has been given; with ``found`` that was done before."""

    state = JobState.DEPLOYING

    def __init__(self, job: JobMaster, *, found: bool = False) -> None:
        super().__init__(job)
        self._found = found

    def enter(self, now: float, effects: Effects) -> None:
        """Send the driver to its slot."""
        if not self._found:
            self._job.deployments.start_driver(now, effects)

    def driver_runs(self, now: float, effects: Effects) -> None:
        """What runs where is decided from now on by what the driver wants and the job holds."""
        self._job.go(Executing(self._job), now, effects)


class Executing(_Active):
    """The driver runs, with as many executors as it wants and the job has slots for."""

    state = JobState.RUNNING


class Reconciling(Phase):
    """The driver may live, but nobody has heard of it since its worker or the job's leader was lost."""

    state = JobState.RECONCILING
    timers = ("fence",)

    def enter(self, now: float, effects: Effects) -> None:
        """After the fence it cannot live any more."""
        unseen = self._job.driver.unseen
        assert unseen is not None
        self._job.timers.set("fence", unseen.until)

    def on_timer(self, key: str, now: float, effects: Effects) -> None:
        """The fence, which is moved when the driver's worker is heard of."""
        unseen = self._job.driver.unseen
        if unseen is None:
            return
        if unseen.until > now:
            self._job.timers.set("fence", unseen.until)
            return
        waited = f"{self._job.config.driver_fence_s:g} s"
        self.driver_gone(f"nothing was heard of {unseen.worker} for {waited} ({unseen.reason})", now, effects)
        self._job.advance(now, effects)

    def driver_gone(self, reason: str, now: float, effects: Effects) -> None:
        """Another one may begin."""
        self._job.driver.unseen = None
        super().driver_gone(reason, now, effects)

    def driver_found(self, process: ProcessPhase, now: float, effects: Effects) -> None:
        """Its worker has shown it."""
        job = self._job
        effects.events.append(Event("driver-found", job.job, fields={"process": job.driver.name}))
        starting = process is ProcessPhase.STARTING
        job.go(CreatingExecutionGraph(job, found=True) if starting else Executing(job), now, effects)

    def fail(self, result: JobResult, now: float, effects: Effects) -> None:
        """A driver that is out of sight has troubles of its own."""


class Restarting(Phase):
    """The driver has ended and is to be followed by another; what is left of it is being ended."""

    state = JobState.RESTARTING

    def __init__(self, job: JobMaster, at: float) -> None:
        super().__init__(job)
        self._at = at

    def enter(self, now: float, effects: Effects) -> None:
        """Look again when the delay is over."""
        self._job.timers.set("advance", self._at)

    def advance(self, now: float, effects: Effects) -> None:
        """Once nothing of the old driver's executors is left, begin again with new secrets."""
        deployments = self._job.deployments
        if deployments.end_all(effects) and now >= self._at:
            deployments.begin_again()
            self._job.work.driver_gone()
            self._job.go(WaitingForResources(self._job), now, effects)

    def driver_ended(self, status: ProcessStatus, now: float, effects: Effects) -> None:
        """It is known already."""


class Failing(Phase):
    """The driver is being ended, because the job cannot go on."""

    state = JobState.FAILING

    def __init__(self, job: JobMaster, result: JobResult) -> None:
        super().__init__(job)
        self._result = result

    def enter(self, now: float, effects: Effects) -> None:
        """Not for ever."""
        job = self._job
        job.timers.set("release-timeout", now + job.config.release_timeout_s)
        assert job.driver.slot is not None
        job.workers.end_process(job.pool.slots[job.driver.slot], effects)

    def on_timer(self, key: str, now: float, effects: Effects) -> None:
        """It has not ended in time."""
        self._job.end(self._result, now, effects)

    def driver_ended(self, status: ProcessStatus, now: float, effects: Effects) -> None:
        """As it was asked to."""
        self._job.end(self._result, now, effects)

    def driver_lost(self, slot: HeldSlot, reason: str, dead: bool, now: float, effects: Effects) -> None:
        """Nor can it be heard of any more."""
        self._job.driver.slot = None
        self._job.end(self._result, now, effects)


class Canceling(Phase):
    """All is being given back."""

    state = JobState.CANCELLING

    def enter(self, now: float, effects: Effects) -> None:
        """Require nothing; a driver that is out of sight is ended where it is found."""
        job = self._job
        job.require({}, now, effects)
        unseen = job.driver.unseen
        if unseen is not None:
            job.workers.freeing[unseen.allocation] = unseen.worker
            job.driver.unseen = None
        job.give_all_back("the job is cancelled", now, effects)
        job.advance(now, effects)

    def advance(self, now: float, effects: Effects) -> None:
        """The end comes when nothing is left."""
        job = self._job
        if not job.pool.slots and not job.workers.freeing:
            job.end(JobResult(JobState.CANCELED, reason="cancelled"), now, effects)

    def on_timer(self, key: str, now: float, effects: Effects) -> None:
        """What has not answered by now is left to the workers' own time-outs (B: ST-07)."""
        self._job.workers.freeing.clear()
        self._job.advance(now, effects)

    def driver_ended(self, status: ProcessStatus, now: float, effects: Effects) -> None:
        """As it was asked to."""

    def fail(self, result: JobResult, now: float, effects: Effects) -> None:
        """It ends anyway."""

    def cancel(self, now: float, effects: Effects) -> None:
        """It is being done."""


class Finished(Phase):
    """The job is over: FINISHED, FAILED or CANCELED."""

    def __init__(self, job: JobMaster, result: JobResult) -> None:
        super().__init__(job)
        self.state = result.state  # type: ignore[misc]
        self._told = False

    def enter(self, now: float, effects: Effects) -> None:
        """Nothing is required, and everything given back."""
        self._job.over(now, effects)

    def advance(self, now: float, effects: Effects) -> None:
        """The Dispatcher hears when nothing is left."""
        job = self._job
        if job.released and not self._told:
            self._told = True
            job.timers.clear("release-timeout")
            job.report_status(effects)

    def on_timer(self, key: str, now: float, effects: Effects) -> None:
        """What has not answered by now is left to the workers' own time-outs (B: ST-07)."""
        self._job.workers.freeing.clear()
        self._job.advance(now, effects)

    def driver_ended(self, status: ProcessStatus, now: float, effects: Effects) -> None:
        """As it was asked to."""

    def driver_gone(self, reason: str, now: float, effects: Effects) -> None:
        """As it was asked to."""

    def fail(self, result: JobResult, now: float, effects: Effects) -> None:
        """It has ended before."""

    def cancel(self, now: float, effects: Effects) -> None:
        """It has ended before."""
