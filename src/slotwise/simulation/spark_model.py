"""A model of what runs in one worker's slots: Spark drivers that want executors and end after a while, executors that
join.

Only what the machines can see is modelled: process states, and the driver's absolute reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from slotwise.model.ids import Address, AllocationId
from slotwise.model.process import (
    DriverDirectives,
    DriverProcess,
    DriverReport,
    ExecutorProcess,
    ExecutorTotal,
)
from slotwise.protocol.effects import (
    CleanSlot,
    DriverSaid,
    EndProcess,
    ProcessChanged,
    StartProcess,
    TellDriver,
)
from slotwise.protocol.messages import ProcessPhase, ProcessStatus
from slotwise.simulation.pipeline_model import PipelineBehaviour, PipelineModel

if TYPE_CHECKING:
    from slotwise.simulation.world import World


@dataclass
class Behaviour:
    """What programs do, by the job's program name: how long with an executor attached, how they end."""

    seconds: float = 20.0
    exit_code: int = 0
    executor_exit_code: int | None = None
    pipeline: PipelineBehaviour | None = None


@dataclass
class _Running:
    process: str
    spec: DriverProcess | ExecutorProcess
    report: DriverReport | None = None
    pipeline: PipelineModel | None = None


BEHAVIOURS: dict[str, Behaviour] = {}
"""By program path; a program that is not here has the default behaviour."""


class SparkModel:
    """The processes of one worker."""

    def __init__(self, world: World, address: Address) -> None:
        self.dead = False
        self.running: dict[AllocationId, _Running] = {}
        self._world = world
        self._address = address

    def carry_out(self, effect: StartProcess | EndProcess | TellDriver | CleanSlot) -> None:
        """Do as the runtime would."""
        match effect:
            case StartProcess():
                self.running[effect.allocation] = _Running(effect.process, effect.spec)
                self._later(0.5, effect.allocation, effect.process, self._started)
            case EndProcess(allocation, process):
                self._later(0.3, allocation, process, lambda a: self.end(a, -15))
            case TellDriver(allocation, directives):
                self._directed(allocation, directives)
            case CleanSlot(allocation):
                assert allocation not in self.running, f"{allocation} was destroyed under its process"

    def reconnect(self) -> None:
        """The worker is a new process: drivers find it and say all again."""
        for allocation, running in list(self.running.items()):
            if running.report is not None:
                self._later(0.5, allocation, running.process, self._say)

    def end(self, allocation: AllocationId, exit_code: int) -> None:
        """The process in the slot ends."""
        running = self.running.pop(allocation)
        if isinstance(running.spec, ExecutorProcess):
            self._with_driver(running.spec, lambda model, slot: model.unregister(slot, running.spec))
        status = ProcessStatus(running.process, ProcessPhase.EXITED, exit_code=exit_code)
        self._world.stimulate(self._address, ProcessChanged(allocation, status))

    def _later(self, seconds: float, allocation: AllocationId, process: str, action: object) -> None:
        def fire() -> None:
            running = self.running.get(allocation)
            if not self.dead and running is not None and running.process == process:
                action(allocation)  # type: ignore[operator]

        self._world.after(seconds, fire)

    def _started(self, allocation: AllocationId) -> None:
        running = self.running[allocation]
        status = ProcessStatus(running.process, ProcessPhase.RUNNING, pid=1)
        self._world.stimulate(self._address, ProcessChanged(allocation, status))
        if allocation not in self.running:
            return
        if isinstance(running.spec, DriverProcess):
            self._later(1.0, allocation, running.process, self._ready)
        else:
            self._later(1.0, allocation, running.process, self._join)

    def _ready(self, allocation: AllocationId) -> None:
        running = self.running[allocation]
        spec = running.spec
        assert isinstance(spec, DriverProcess)
        app = f"app-{spec.attempt}"
        behaviour = BEHAVIOURS.get(spec.spec.program, Behaviour())
        if behaviour.pipeline is not None:
            running.pipeline = PipelineModel(app, behaviour.pipeline)
            url = f"spark://{self._address}/{allocation}"
            running.report = DriverReport(1, app, driver_url=url, pipeline=running.pipeline.report)
            self._say(allocation)
            return
        total = ExecutorTotal(0, spec.spec.executor, spec.spec.initial_executors)
        running.report = DriverReport(1, app, driver_url=f"spark://{self._address}/{allocation}", totals=(total,))
        self._say(allocation)
        if not spec.spec.initial_executors:
            self._finish_later(allocation)

    def _finish_later(self, allocation: AllocationId) -> None:
        running = self.running[allocation]
        assert isinstance(running.spec, DriverProcess)
        behaviour = BEHAVIOURS.get(running.spec.spec.program, Behaviour())
        self._later(behaviour.seconds, allocation, running.process, lambda a: self.end(a, behaviour.exit_code))

    def _join(self, allocation: AllocationId) -> None:
        spec = self.running[allocation].spec
        assert isinstance(spec, ExecutorProcess)
        self._with_driver(spec, lambda model, slot: model.register(slot, spec))

    def _with_driver(self, spec: ExecutorProcess, action: object) -> None:
        """Reach the driver at ``driver_url``, wherever it runs, if it still does."""
        address, _, allocation = spec.driver_url.removeprefix("spark://").partition("/")
        for worker, model in self._world.spark.items():
            slot = AllocationId(allocation)
            if f"te:{worker}" == address and slot in model.running:
                action(model, slot)  # type: ignore[operator]

    def register(self, slot: AllocationId, spec: ExecutorProcess) -> None:
        """An executor joins the driver in ``slot``."""
        report = self.running[slot].report
        if report is None or spec.app_id != report.app_id:
            return
        first = not report.registered
        self.change(slot, registered=tuple(sorted({*report.registered, spec.executor_id})))
        if self.running[slot].pipeline is not None:
            self._work(slot)
        elif first:
            self._finish_later(slot)

    def unregister(self, slot: AllocationId, spec: object) -> None:
        """An executor's connection to the driver in ``slot`` breaks."""
        report = self.running[slot].report
        if report is not None and isinstance(spec, ExecutorProcess):
            self.change(slot, registered=tuple(e for e in report.registered if e != spec.executor_id))

    def _directed(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        running = self.running.get(allocation)
        if running is None or running.report is None or directives.version <= running.report.directives_seen:
            return
        gone = {lost.executor_id for lost in directives.lost}
        registered = tuple(executor for executor in running.report.registered if executor not in gone)
        self.change(allocation, directives_seen=directives.version, registered=registered)
        for executor_id in directives.decommission:
            self._decommission(executor_id)
        if running.pipeline is not None:
            if directives.pipeline is not None:
                running.pipeline.tell(directives.pipeline)
            self.change(allocation, regions=directives.regions, pipeline=running.pipeline.report)
            self._work(allocation)
            if running.pipeline.stopped:
                self._later(0.2, allocation, running.process, lambda a: self.end(a, 0))

    # ---- pipelines ----

    def _served(self, slot: AllocationId) -> list[str]:
        report = self.running[slot].report
        assert report is not None
        return [report.regions[executor] for executor in report.registered if executor in report.regions]

    def _work(self, slot: AllocationId) -> None:
        running = self.running[slot]
        spec = running.spec
        assert isinstance(spec, DriverProcess)
        behaviour = BEHAVIOURS[spec.spec.program].pipeline
        assert running.pipeline is not None
        assert behaviour is not None
        for region, attempt in running.pipeline.to_begin(self._served(slot)):
            self._later(behaviour.region_s, slot, running.process, self._finisher(region, attempt))

    def _finisher(self, region: str, attempt: int) -> Callable[[AllocationId], None]:
        def finish(slot: AllocationId) -> None:
            pipeline = self.running[slot].pipeline
            assert pipeline is not None
            if pipeline.finish(region, attempt, self._served(slot)):
                self.change(slot, pipeline=pipeline.report)
            self._work(slot)

        return finish

    def _decommission(self, executor_id: str) -> None:
        """An executor of this world moves its blocks and ends by itself."""
        for model in self._world.spark.values():
            for allocation, running in model.running.items():
                if isinstance(running.spec, ExecutorProcess) and running.spec.executor_id == executor_id:
                    model._later(2.0, allocation, running.process, lambda a, model=model: model.end(a, 0))

    def change(self, allocation: AllocationId, **changes: object) -> None:
        """The driver in the slot says something new."""
        running = self.running[allocation]
        assert running.report is not None
        running.report = msgspec.structs.replace(running.report, version=running.report.version + 1, **changes)
        self._say(allocation)

    def _say(self, allocation: AllocationId) -> None:
        report = self.running[allocation].report
        assert report is not None
        self._world.stimulate(self._address, DriverSaid(allocation, report))
