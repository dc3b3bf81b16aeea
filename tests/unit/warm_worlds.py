"""Worlds whose Dispatcher keeps warm applications, and a model of Spark whose warm drivers wait for their program."""

from __future__ import annotations

from typing import Any

from slotwise.dispatcher.machine import Dispatcher, DispatcherConfig
from slotwise.dispatcher.warm_applications import WarmApplicationPolicy
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.ids import DISPATCHER, Address, AllocationId, JobId, WorkerId, job_master_address, worker_address
from slotwise.model.job import JobState
from slotwise.model.process import DriverDirectives, DriverProcess, DriverReport, ExecutorProcess, ExecutorTotal
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import Effects, Event, JobMasterExited, StartJobMaster, StopJobMaster
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour, SparkModel
from slotwise.simulation.world import World
from tests.unit.worlds import WORKER, spec

BEHAVIOURS["/long.py"] = Behaviour(seconds=300)


class WarmSpark(SparkModel):
    """A warm driver has its executors, says that it waits, and works once it is told what. ``programs``: what each was
    told.
    """

    def __init__(self, world: World, address: Address) -> None:
        super().__init__(world, address)
        self.programs: dict[AllocationId, str] = {}

    def _waits(self, allocation: AllocationId) -> bool:
        report = self.running[allocation].report
        return report is not None and report.waits

    def _ready(self, allocation: AllocationId) -> None:
        spec = self.running[allocation].spec
        assert isinstance(spec, DriverProcess)
        if not spec.warm:
            super()._ready(allocation)
            return
        total = ExecutorTotal(0, spec.spec.executor, spec.spec.initial_executors)
        url = f"spark://{self._address}/{allocation}"
        self.running[allocation].report = DriverReport(1, "app-warm", driver_url=url, totals=(total,), waits=True)
        self._say(allocation)

    def _finish_later(self, allocation: AllocationId) -> None:
        if allocation in self.programs:
            behaviour, name = BEHAVIOURS.get(self.programs[allocation], Behaviour()), self.running[allocation].process
            self._later(behaviour.seconds, allocation, name, lambda a: self.end(a, behaviour.exit_code))
        elif not self._waits(allocation):
            super()._finish_later(allocation)

    def _directed(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        super()._directed(allocation, directives)
        if directives.program is not None and allocation in self.running and self._waits(allocation):
            assert allocation not in self.programs
            self.programs[allocation] = directives.program.program
            self.change(allocation, waits=False)
            self._finish_later(allocation)


class WarmWorld(World):
    """``started`` and ``stopped``: what the Dispatcher has had done with JobMasters, in order."""

    def __init__(self, policy: WarmApplicationPolicy | None = None, workers: int = 2, **config: Any) -> None:
        self.policy = policy or WarmApplicationPolicy(most=1)
        self.started: list[StartJobMaster] = []
        self.stopped: list[JobId] = []
        self._said: list[tuple[Address, Event]] = []
        super().__init__(**config)
        for _ in range(workers):
            self.add_worker(WORKER)

    def start_dispatcher(self) -> None:
        super().start_dispatcher()
        before = self.dispatcher
        recovered = list(self.store.values())
        config = DispatcherConfig(warm=self.policy)
        self.machines[DISPATCHER] = Dispatcher(config, before.token, self.ids, self.now, recovered)

    def add_worker(
        self, total: ResourceProfile, worker: WorkerId | None = None, default_profile: ResourceProfile | None = None
    ) -> WorkerId:
        name = super().add_worker(total, worker, default_profile)
        self.spark[name] = WarmSpark(self, worker_address(name))
        return name

    def crash_job_master(self, job: JobId) -> None:
        del self.machines[job_master_address(job)]
        known = self.store.get(job)
        self.stimulate(DISPATCHER, JobMasterExited(job, "it crashed", None if known is None else known.progress))

    def _carry_out(self, address: Address, effects: Effects) -> None:
        self._said += [(address, event) for event in effects.events]
        super()._carry_out(address, effects)
        for change in effects.job_masters:
            if isinstance(change, StopJobMaster):
                self.stopped.append(change.job)
                continue
            self.started.append(change)
            if change.warm:
                self.machines[job_master_address(change.job)] = JobMaster(
                    change.job, change.spec, self.jm_config, change.token, self.ids, self.now, warm=True
                )

    # ------------------------------------------------------------------------------------------- what tests ask

    def warm_waiting(self) -> JobId:
        """Have a job run to its end, and then a warm application of its kind wait, which is returned."""
        first = self.submit(spec())
        self.run_until(lambda: self.dispatcher.jobs[first].released)
        self.run_until(lambda: any(entry.waits for entry in self.dispatcher.warm.entries.values()), 60)
        return next(iter(self.dispatcher.warm.entries))

    def warm_begun(self) -> JobId:
        """Have a warm application begun, which is returned."""
        self.run_until(lambda: bool(self.dispatcher.warm.entries), 60)
        return next(iter(self.dispatcher.warm.entries))

    def sent(self, kind: type, to: Address | None = None) -> list[Any]:
        """The messages of one type that have arrived, at ``to`` alone if given."""
        return [m.payload for m in self.delivered if isinstance(m.payload, kind) and to in (None, m.to)]

    def said_by(self, address: Address) -> list[Event]:
        """The events of one machine."""
        return [event for of, event in self._said if of == address]

    def lose_all(self, *kinds: type) -> None:
        """From now on no message of these types arrives."""
        self.lose = lambda envelope: isinstance(envelope.payload, kinds)

    def keep_all(self) -> None:
        """From now on nothing is lost."""
        self.lose = lambda _: False

    def driver(self, job: JobId) -> tuple[WorkerId, AllocationId]:
        """Where the job's driver runs."""
        return next(
            (worker, allocation)
            for worker, model in self.spark.items()
            for allocation, running in model.running.items()
            if isinstance(running.spec, DriverProcess) and self.te(worker).table.slots[allocation].job == job
        )

    def end_driver(self, job: JobId, exit_code: int = -9) -> None:
        """The job's driver ends."""
        worker, allocation = self.driver(job)
        self.spark[worker].end(allocation, exit_code)

    def executors(self, job: JobId) -> list[tuple[WorkerId, AllocationId]]:
        """Where the job's executors run."""
        return [
            (worker, allocation)
            for worker, model in self.spark.items()
            for allocation, running in model.running.items()
            if isinstance(running.spec, ExecutorProcess) and self.te(worker).table.slots[allocation].job == job
        ]

    def programs(self) -> list[str]:
        """What warm drivers were told to run."""
        return [
            program
            for model in self.spark.values()
            if isinstance(model, WarmSpark)
            for program in model.programs.values()
        ]

    def until_finished(self, job: JobId, limit_s: float = 600) -> None:
        """Let the job end well, and all of it be given back."""
        self.run_until(lambda: self.dispatcher.jobs[job].released, limit_s)
        assert self.state(job) is JobState.FINISHED
