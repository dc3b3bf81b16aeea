"""What a job's driver is served with while it lives: executors as Spark asks for them (:class:`ApplicationWork`), or as
the regions of a pipeline need them (:class:`PipelineWork`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slotwise.jobmaster.executors import Executor, report_events
from slotwise.jobmaster.pipeline import Pipeline, Supply
from slotwise.jobmaster.rescaling import RescaleCause, RescaleHistory
from slotwise.model.job import ExecutorBounds, JobResult, JobState
from slotwise.model.process import DriverReport, ExecutorTotal
from slotwise.model.regions import RegionSize
from slotwise.model.requirements import Counts
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import Shortage, ShortageReason

if TYPE_CHECKING:
    from slotwise.jobmaster.machine import JobMaster


class Work(Protocol):
    """See the module's head."""

    @property
    def reason(self) -> str:
        """Why the work has failed for good, whatever becomes of the driver; empty when it has not."""

    @property
    def done(self) -> bool:
        """Whether all is done, so that it does not matter any more how the driver ends."""

    @property
    def unfinished(self) -> str:
        """Why a driver that ends well now has not done its work; empty when it has."""

    @property
    def idle_slot_timeout_s(self) -> float:
        """How long a slot that is not required may stay with the job."""

    def take(self, report: DriverReport, now: float, effects: Effects) -> None:
        """The driver has said something."""

    def serve(self, now: float, effects: Effects) -> None:
        """Declare, start and end what the driver needs; harmless to call at any time while there is one."""

    def on_hopeless(self, shortage: Shortage, now: float, effects: Effects) -> None:
        """What is missing can never be there."""

    def driver_gone(self) -> None:
        """The driver has ended; another one may follow."""


class ApplicationWork:
    """A plain PySpark program: Spark says how many executors it wants, the job's bounds say how many it may have."""

    reason = ""
    # That is the program's own business.
    done = False
    unfinished = ""

    def __init__(self, job: JobMaster) -> None:
        self._job = job

    @property
    def idle_slot_timeout_s(self) -> float:
        """A slot may be wanted again soon."""
        return self._job.config.idle_slot_timeout_s

    def take(self, report: DriverReport, now: float, effects: Effects) -> None:
        """See what has become of the application, and of its wishes."""
        job = self._job
        before = job.executors.report
        wanted = job.executors.wanted(job.rescaling.most)
        if not job.executors.take(report):
            return
        if before is not None and before.app_id != report.app_id:
            job.rescaling.start_again(RescaleCause.INITIAL_SCHEDULE)
        elif before is not None and job.executors.wanted(job.rescaling.most) != wanted:
            job.rescaling.because(RescaleCause.DYNAMIC_ALLOCATION)
        effects.events += report_events(job.job, before, report, job.rescaling.most)

    def serve(self, now: float, effects: Effects) -> None:
        """As many executors as Spark wants and the job may have."""
        job = self._job
        job.rescaling.apply(now)
        most = job.rescaling.most
        required = job.deployments.required(most)
        if required is not None:
            job.require(required, now, effects)
        again_at = job.deployments.stop_surplus(most, now, effects)
        if again_at is not None:
            job.timers.set_earlier("decommission", again_at)
        if job.knows_executors:
            if job.inherits and job.executors.report is not None:
                job.inherits = False
                job.rescaling.take_over(job.executors.staying()[0])
            job.deployments.start_executors(most, now, effects)
            if job.executors.active:
                # The end of an application is no rescale.
                effects.events += job.rescaling.observe(*job.executors.staying(), now)
        job.deployments.direct(effects)

    def on_hopeless(self, shortage: Shortage, now: float, effects: Effects) -> None:
        """The job goes on with what it has."""

    def driver_gone(self) -> None:
        """Nothing is remembered."""
        self._job.rescaling.start_again(RescaleCause.RECOVERABLE_FAILOVER)


class PipelineWork:
    """A pipeline: each region runs on executors of its own size, which move on to the next where they fit (A-07)."""

    def __init__(self, job: JobMaster) -> None:
        self._job = job
        self.pipeline = Pipeline(
            job.job,
            job.spec,
            job.driver.progress.finished_regions,
            job.config.stabilisation_s,
            job.config.resource_wait_timeout_s,
        )
        # Of the regions that run, or have run, under this leader.
        self._histories: dict[str, RescaleHistory] = {}
        self._bounds_version = job.rescaling.version

    @property
    def reason(self) -> str:
        """Why the pipeline has failed."""
        return self.pipeline.reason if self.pipeline.failure or self.pipeline.over else ""

    @property
    def done(self) -> bool:
        """It is on record before the program is told."""
        return self._job.driver.progress.pipeline_done

    @property
    def unfinished(self) -> str:
        """Only the program of a pipeline that is done has been told to end."""
        return "" if self.done else "the program ended before the pipeline was done"

    @property
    def idle_slot_timeout_s(self) -> float:
        """What no region needs is for others, be they regions of the same job."""
        return self._job.config.idle_slot_timeout_s if self.pipeline.graph is None else 0.0

    def take(self, report: DriverReport, now: float, effects: Effects) -> None:
        """See what has become of the regions; the finished ones are recorded before anything follows from it."""
        job = self._job
        before = job.executors.report
        if not job.executors.take(report):
            return
        effects.events += report_events(job.job, before, report, None)
        if report.pipeline is not None:
            finished = self.pipeline.take(report.pipeline, job.spec.restart, now)
            if finished:
                job.driver.regions_finished(finished, effects)
        effects.events += self.pipeline.events()

    def serve(self, now: float, effects: Effects) -> None:
        """Give the regions what there is, and have the program run those that can run."""
        job = self._job
        executors = job.executors
        job.rescaling.apply(now)
        most = job.rescaling.most
        if executors.report is None or not job.knows_executors:
            return
        if self.reason:
            job.phase.fail(JobResult(JobState.FAILED, 1, self.reason), now, effects)
            return
        job.inherits = False
        if self.pipeline.graph is None and any(executor.region for executor in self._staying()):
            # An earlier leader has brought the job where it is; what for is not known yet.
            executors.instruct(self.pipeline.directives())
            job.deployments.direct(effects)
            return
        self.pipeline.decide(self._supply(), most, now)
        self._assign()
        helper = self._helper()
        executors.plan = (*self.pipeline.totals(), *helper)
        self._require(most, now, effects)
        self._end_surplus(now, effects)
        job.deployments.start_executors(None, now, effects)
        self._observe(now, effects)
        if self.pipeline.over and not self.done:
            job.driver.pipeline_done(effects)
        executors.instruct(self.pipeline.directives())
        job.deployments.direct(effects)
        effects.events += self.pipeline.events()
        due = self.pipeline.due(now)
        if due is not None:
            job.timers.set("regions", due)
        else:
            job.timers.clear("regions")

    def on_hopeless(self, shortage: Shortage, now: float, effects: Effects) -> None:
        """Only the regions of that size cannot run."""
        self.pipeline.on_hopeless(shortage.profile, shortage.detail)
        effects.events += self.pipeline.events()

    def driver_gone(self) -> None:
        """What it ran must run again."""
        self.pipeline.driver_gone()
        for history in self._histories.values():
            history.start_again(RescaleCause.RECOVERABLE_FAILOVER)

    # ------------------------------------------------------------------------------------------- executors

    def _staying(self) -> list[Executor]:
        return [executor for executor in self._job.executors.live.values() if executor.stays]

    def _size(self, executor: Executor) -> RegionSize:
        process = executor.process
        if process is not None:
            return RegionSize(process.size, process.task_slots or process.size.cores)
        run = self.pipeline.runs.get(executor.region)
        own = self._job.spec.executor
        return run.size if run is not None else RegionSize(own, own.cores)

    def _supply(self) -> Supply:
        at_work: dict[str, int] = {}
        loose: dict[RegionSize, int] = {}
        running = {total.region for total in self.pipeline.totals()}
        for executor in self._staying():
            if executor.region in running:
                at_work[executor.region] = at_work.get(executor.region, 0) + 1
            else:
                size = self._size(executor)
                loose[size] = loose.get(size, 0) + 1
        slots: dict[ResourceProfile, int] = {}
        for slot in self._job.pool.slots.values():
            if not slot.busy and not slot.leaving:
                slots[slot.profile] = slots.get(slot.profile, 0) + 1
        return Supply(at_work, loose, slots)

    def _assign(self) -> None:
        """Move executors without work to regions that have a share left."""
        executors = self._job.executors
        totals = self.pipeline.totals()
        running = {total.region for total in totals}
        staying = self._staying()
        for total in totals:
            size = RegionSize(total.size, total.task_slots or total.size.cores)
            there = sum(1 for executor in staying if executor.region == total.region)
            for executor in staying:
                if there < total.count and executor.region not in running and self._size(executor) == size:
                    executors.assign(executor, total.region)
                    there += 1

    def _helper(self) -> tuple[ExecutorTotal, ...]:
        """An executor for what Spark looks at before any region runs, if something waits for one."""
        report = self._job.executors.report
        assert report is not None
        if self.pipeline.graph is not None and not self.pipeline.options.dry_run:
            return ()
        there = any(not executor.region for executor in self._staying())
        waits = any(not stage.region for stage in report.stages)
        return (ExecutorTotal(0, self._job.spec.executor, 1),) if there or waits else ()

    def _require(self, most: int | None, now: float, effects: Effects) -> None:
        job = self._job
        pipeline = self.pipeline
        # Until the graph is known one executor's slot is kept: drivers alone could keep each other from everything.
        helpers = 1 if pipeline.graph is None or (pipeline.options.dry_run and not pipeline.over) else 0
        counts: Counts = {job.spec.driver.profile: 1}
        for profile, count in pipeline.required(most, helpers).items():
            counts[profile] = counts.get(profile, 0) + count
        job.require(counts, now, effects)

    def _end_surplus(self, now: float, effects: Effects) -> None:
        """End executors that no region needs, but keep those that one may soon start with; and for a while those of a
        size that comes again, if the job does not lack anything that could take their place.
        """
        job = self._job
        most = job.rescaling.most
        keep: dict[RegionSize, int] = {}
        for run in self.pipeline.waiting():
            keep[run.size] = keep.get(run.size, 0) + self.pipeline.wanted(run, most)
        lacking = any(shortage.reason is not ShortageReason.WORKERS_COMING for shortage in job.shortages)
        later = {} if lacking else self.pipeline.later(most)
        shares = {total.region: total.count for total in job.executors.plan or ()}
        for executor in self._staying():
            size = self._size(executor)
            if shares.get(executor.region, 0) > 0:
                shares[executor.region] -= 1
            elif executor.region in shares and executor.registered:
                job.deployments.decommission(executor, now, effects)
            elif keep.get(size, 0) > 0:
                keep[size] -= 1
            elif later.get(size, 0) > 0 and self._may_wait(executor, now):
                later[size] -= 1
            else:
                job.deployments.stop(executor, effects)
        again_at = job.deployments.stop_given_back(now, effects)
        if again_at is not None:
            job.timers.set_earlier("decommission", again_at)

    def _observe(self, now: float, effects: Effects) -> None:
        """Note how the number of each running region's executors changes."""
        job = self._job
        changed = self._bounds_version != job.rescaling.version
        self._bounds_version = job.rescaling.version
        staying = self._staying()
        for total in self.pipeline.totals():
            history = self._histories.get(total.region)
            if history is None:
                history = self._histories[total.region] = RescaleHistory(job.job, total.region)
            elif changed:
                history.ask()
            own = [executor for executor in staying if executor.region == total.region]
            joined = sum(1 for executor in own if executor.registered)
            run = self.pipeline.runs[total.region]
            bounds = ExecutorBounds(run.region.parallelism.least, self.pipeline.wanted(run, job.rescaling.most))
            effects.events += history.observe(len(own), joined, now, bounds)[0]

    def _may_wait(self, executor: Executor, now: float) -> bool:
        if executor.loose_since is None:
            executor.loose_since = now
        until = executor.loose_since + self._job.config.idle_slot_timeout_s
        self._job.timers.set_earlier("advance", until)
        return now < until
