"""A model of what runs in slots: Spark drivers that want executors and end, executors that join them.

Only what the machines can see is modelled: process states, and the driver's absolute reports. A slot process is a
child of its keeper, not of the worker process: it lives on when that dies, until the keeper's patience ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from slotwise.model.ids import Address, AllocationId, JobId
from slotwise.model.job_graph import reads_of
from slotwise.model.process import (
    DriverDirectives,
    DriverProcess,
    DriverReport,
    ExecutorProcess,
    ExecutorTotal,
)
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import DriverSaid, ProcessChanged, StartProcess
from slotwise.protocol.messages import ProcessPhase, ProcessStatus
from slotwise.simulation.pipeline_model import PipelineBehaviour, PipelineModel
from slotwise.simulation.scenario import ProgramPlan
from slotwise.simulation.story import Violation

if TYPE_CHECKING:
    from slotwise.simulation.cluster import Cluster
    from slotwise.simulation.hosts import Host

_JOIN_RETRY_S = 0.5
_JOIN_TRIES = 40
_WARM_BOOT_S = 3.0


class SlotProcess:
    """A process in a slot, from its start to its end. ``status`` is what its keeper knows of it."""

    def __init__(self, host: Host, start: StartProcess, profile: ResourceProfile, job_master: Address) -> None:
        self.host = host
        self.allocation: AllocationId = start.allocation
        self.job: JobId = start.job
        self.name = start.process
        self.spec = start.spec
        self.profile = profile
        self.job_master = job_master
        self.job_master_token = 0
        self.alive = True
        self.ending = False
        self.status = ProcessStatus(start.process, ProcessPhase.STARTING)
        self.report: DriverReport | None = None
        self.launched: frozenset[str] = frozenset()
        self.working = False
        self.spec_name = ""
        self.program = ""
        self.pipeline: PipelineModel | None = None

    @property
    def is_driver(self) -> bool:
        """Whether it is a job's driver."""
        return isinstance(self.spec, DriverProcess)

    def __str__(self) -> str:
        return f"{self.name} of {self.job} in {self.allocation} on {self.host.name}"


class Programs:
    """All slot processes of a cluster. ``plans`` has what the drivers of a job (by its specification's name) do;
    ``pipelines`` the projects of those that are pipelines.
    """

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        plans: dict[str, tuple[ProgramPlan, ...]],
        pipelines: dict[str, PipelineBehaviour],
    ) -> None:
        self.plans = plans
        self.pipelines = pipelines
        self.drivers: dict[str, SlotProcess] = {}
        self.exits: list[tuple[JobId, int | None]] = []
        self.start_failures: dict[int, tuple[str, float]] = {}
        self._cluster = cluster
        self._engine = cluster.engine
        self._rng = rng
        self._application = 0
        self.handed_over = 0
        """How many warm drivers were given a program."""

    # ------------------------------------------------------------------------------------------- any process

    def start(self, process: SlotProcess) -> None:
        """The worker has asked the keeper to start it."""
        known = self._cluster.store.jobs.get(process.job)
        process.spec_name = known.spec.name if known is not None else ""
        self._cluster.note("process", "starts", process)
        for target, chance in self.start_failures.values():
            if target == process.host.name and self._rng.random() < chance:
                self._later(0.05, process, lambda p: self.end(p, None, "simulated: no memory for a process"))
                return
        self._later(self._rng.uniform(0.1, 1.5), process, self._started)

    def stop(self, process: SlotProcess) -> None:
        """Ask it to end; it takes its time, and is killed when it takes too long."""
        if not process.ending:
            process.ending = True
            grace_s = 10.0 if self._rng.random() < 0.05 else self._rng.uniform(0.05, 2.0)
            self._later(grace_s, process, lambda p: self.end(p, -15))

    def end(self, process: SlotProcess, exit_code: int | None, reason: str = "") -> None:
        """It has ended; its worker is told if there is one, else a later one will find out."""
        if not process.alive:
            return
        process.alive = False
        process.status = ProcessStatus(process.name, ProcessPhase.EXITED, exit_code=exit_code, reason=reason)
        self._cluster.note("process", "ended", process, exit_code)
        if isinstance(process.spec, DriverProcess):
            self.exits.append((process.job, exit_code))
            if process.report is not None:
                self.drivers.pop(process.report.driver_url, None)
        else:
            driver = self.drivers.get(process.spec.driver_url)
            if driver is not None:
                self._unregister(driver, process.spec.executor_id)
        self._tell(process)

    def _tell(self, process: SlotProcess) -> None:
        actor = process.host.actor
        if actor is not None:
            self._engine.post(actor, ProcessChanged(process.allocation, process.status))

    def _later(self, seconds: float, process: SlotProcess, action: Callable[[SlotProcess], None]) -> None:
        self._engine.after(seconds, _if_alive, process, action)

    def _started(self, process: SlotProcess) -> None:
        process.status = ProcessStatus(process.name, ProcessPhase.RUNNING, pid=1)
        self._tell(process)
        if not process.alive:
            return
        if isinstance(process.spec, DriverProcess):
            boot_s = _WARM_BOOT_S if process.spec.warm else self._plan(process).boot_s
            self._later(boot_s, process, self._ready)
        else:
            self._later(self._rng.uniform(0.2, 1.5), process, lambda p: self._join(p, _JOIN_TRIES))

    # ------------------------------------------------------------------------------------------- drivers

    def _plan(self, process: SlotProcess) -> ProgramPlan:
        spec = process.spec
        assert isinstance(spec, DriverProcess)
        plans = self.plans[process.program or spec.spec.name]
        return plans[min(spec.attempt, len(plans)) - 1]

    def _ready(self, process: SlotProcess) -> None:
        spec = process.spec
        assert isinstance(spec, DriverProcess)
        self._application += 1
        url = f"spark://{process.host.name}/{self._application}"
        total = ExecutorTotal(0, spec.spec.executor, spec.spec.initial_executors)
        app = f"app-{self._application}"
        behaviour = self.pipelines.get(spec.spec.name)
        if behaviour is not None:
            process.pipeline = PipelineModel(app, behaviour)
            process.report = DriverReport(1, app, driver_url=url, pipeline=process.pipeline.report)
            self.drivers[url] = process
            self._say(process)
            return
        process.report = DriverReport(1, app, driver_url=url, totals=(total,), waits=spec.warm)
        self.drivers[url] = process
        self._say(process)
        if not spec.warm:
            self._run(process, ready=not spec.spec.initial_executors)

    def _run(self, process: SlotProcess, *, ready: bool) -> None:
        """The program begins; ``ready``: it need not wait for an executor."""
        for after_s, count in self._plan(process).scales:
            self._later(after_s, process, lambda p, n=count: self._scale(p, n))  # type: ignore[misc]
        if ready:
            self._work(process)

    def _work(self, process: SlotProcess) -> None:
        """With an executor, or without need of one, the program runs to its end."""
        if process.pipeline is not None:
            self._work_on_regions(process, process.pipeline)
        elif not process.working and not (process.report is not None and process.report.waits):
            process.working = True
            plan = self._plan(process)
            self._later(plan.work_s, process, lambda p: self.end(p, plan.exit_code))

    def _scale(self, process: SlotProcess, count: int) -> None:
        """Dynamic allocation wants another total; what is too much is given back, the youngest first."""
        spec, report = process.spec, process.report
        assert isinstance(spec, DriverProcess)
        assert report is not None
        kills = [executor for executor in report.registered if executor not in report.kills]
        kills = sorted(kills, key=int)[count:] if len(kills) > count else []
        total = ExecutorTotal(0, spec.spec.executor, count)
        self._change(process, totals=(total,), kills=(*report.kills, *kills))

    def tell(self, process: SlotProcess, directives: DriverDirectives) -> None:
        """Words from the job's JobMaster: who may register, who is lost."""
        report = process.report
        if report is None or not process.alive or directives.app_id != report.app_id:
            return
        if directives.version <= report.directives_seen:
            return
        process.launched = frozenset(directives.launched)
        lost = {executor.executor_id for executor in directives.lost}
        registered = tuple(executor for executor in report.registered if executor not in lost)
        self._change(process, directives_seen=directives.version, registered=registered)
        for executor in directives.decommission:
            self._decommission(process, executor)
        if process.pipeline is not None:
            self._tell_pipeline(process, process.pipeline, directives)
        if directives.program is not None and report.waits:
            process.program = process.spec_name = directives.program.name
            self._cluster.note("process", "is given its program", process, process.program)
            self.handed_over += 1
            self._change(process, waits=False)
            self._run(process, ready=bool(registered) or not process.spec.spec.initial_executors)  # type: ignore[union-attr]

    # ------------------------------------------------------------------------------------------- pipelines

    def _tell_pipeline(self, process: SlotProcess, pipeline: PipelineModel, directives: DriverDirectives) -> None:
        behaviour = self.pipelines[process.spec_name]
        begun = len(behaviour.runs)
        if directives.pipeline is not None:
            pipeline.tell(directives.pipeline)
        for _, region, _ in behaviour.runs[begun:]:
            self._may_begin(process, behaviour, region)
        self._change(process, regions=directives.regions, pipeline=pipeline.report)
        self._work(process)
        if pipeline.stopped:
            self._later(0.2, process, lambda p: self.end(p, 0))

    def _may_begin(self, process: SlotProcess, behaviour: PipelineBehaviour, region: str) -> None:
        progress = self._cluster.store.jobs[process.job].progress
        recorded = () if progress is None else progress.finished_regions
        if region in recorded:
            raise Violation("finished-regions-stay", f"{region} of {process.job} runs again", process.job)
        missing = [need for need in reads_of(behaviour.graph, region) if need not in behaviour.finished]
        if missing:
            raise Violation("inputs-first", f"{region} of {process.job} runs before {missing}", process.job)

    def _served(self, process: SlotProcess) -> list[str]:
        report = process.report
        assert report is not None
        return [report.regions[executor] for executor in report.registered if executor in report.regions]

    def _work_on_regions(self, process: SlotProcess, pipeline: PipelineModel) -> None:
        for region, attempt in pipeline.to_begin(self._served(process)):
            seconds = self.pipelines[process.spec_name].region_s
            self._later(seconds, process, lambda p, r=region, a=attempt: self._finish(p, r, a))  # type: ignore[misc]

    def _finish(self, process: SlotProcess, region: str, attempt: int) -> None:
        pipeline = process.pipeline
        assert pipeline is not None
        if pipeline.finish(region, attempt, self._served(process)):
            self._change(process, pipeline=pipeline.report)
        self._work(process)

    def _decommission(self, driver: SlotProcess, executor_id: str) -> None:
        """The executor moves its blocks to others, and then ends by itself; a few never get there."""
        if self._rng.random() < 0.1:
            return
        for host in self._cluster.hosts.values():
            for process in host.slots.values():
                spec = process.spec
                mine = isinstance(spec, ExecutorProcess) and driver.report is not None
                if mine and process.job == driver.job and spec.executor_id == executor_id:  # type: ignore[union-attr]
                    self._later(self._rng.uniform(0.5, 20.0), process, lambda p: self.end(p, 0))

    def _change(self, process: SlotProcess, **changes: object) -> None:
        assert process.report is not None
        process.report = msgspec.structs.replace(process.report, version=process.report.version + 1, **changes)
        self._say(process)

    def _say(self, process: SlotProcess) -> None:
        actor = process.host.actor
        if actor is not None and process.report is not None:
            self._engine.post(actor, DriverSaid(process.allocation, process.report))

    def reconnect(self, process: SlotProcess) -> None:
        """The bridge of a living driver has found its worker's new process, and says all again."""
        self._later(self._rng.uniform(0.1, 2.0), process, self._say)

    # ------------------------------------------------------------------------------------------- executors

    def _join(self, process: SlotProcess, tries: int) -> None:
        spec = process.spec
        assert isinstance(spec, ExecutorProcess)
        driver = self.drivers.get(spec.driver_url)
        if driver is None or driver.report is None or tries == 0:
            self.end(process, 1)
        elif spec.executor_id not in driver.launched:
            # The driver has not been told of it yet.
            self._later(_JOIN_RETRY_S, process, lambda p: self._join(p, tries - 1))
        else:
            registered = tuple(sorted({*driver.report.registered, spec.executor_id}, key=int))
            self._change(driver, registered=registered)
            self._work(driver)
            self._later(self._rng.uniform(1, 3), process, self._watch_driver)

    def _watch_driver(self, process: SlotProcess) -> None:
        """An executor whose driver is gone ends by itself."""
        spec = process.spec
        assert isinstance(spec, ExecutorProcess)
        if spec.driver_url in self.drivers:
            self._later(3.0, process, self._watch_driver)
        else:
            self.end(process, 1)

    def _unregister(self, driver: SlotProcess, executor_id: str) -> None:
        report = driver.report
        if report is not None and executor_id in report.registered:
            self._change(driver, registered=tuple(e for e in report.registered if e != executor_id))


def _if_alive(process: SlotProcess, action: Callable[[SlotProcess], None]) -> None:
    if process.alive:
        action(process)
