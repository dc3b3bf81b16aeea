"""The Spark executors of one driver: which run where, what the driver wants, and what it must be told.

All is absolute: the driver's report says how many executors of each Spark resource profile it wants and which it
gives back; the directives say which may register and which are lost."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from slotwise.model.ids import AllocationId, IdSource, JobId
from slotwise.model.job import JobSpec
from slotwise.model.pipeline import PipelineDirectives
from slotwise.model.process import (
    DriverDirectives,
    DriverReport,
    ExecutorIdentity,
    ExecutorProcess,
    ExecutorTotal,
    LostExecutor,
    Program,
)
from slotwise.model.requirements import Counts
from slotwise.protocol.effects import Event


@dataclass
class Executor:
    """An executor that was started and is not known to be gone. ``stopping``: it was asked to end. ``process`` is None
    for one that an earlier leader of the job had started. ``leave_by``: it was asked to move its blocks elsewhere and
    to end by then (monotonic seconds). ``region``: the one of a pipeline that it works for, or has worked for;
    ``loose_since``: since when that does not run any more. ``moving``: its worker is about to go, so another one is to
    be started in its place, and to have what it holds.
    """

    executor_id: str
    ticket: str
    app_id: str
    profile_id: int
    allocation: AllocationId
    process: ExecutorProcess | None
    registered: bool = False
    stopping: bool = False
    leave_by: float | None = None
    region: str = ""
    loose_since: float | None = None
    moving: bool = False

    @property
    def stays(self) -> bool:
        """Whether it is meant to go on."""
        return not (self.stopping or self.moving)


class Executors:
    """The executors of the job's present driver. Executor ids rise over the whole life of the job and are never used
    twice. ``standing``: how many executors of each profile a driver without dynamic allocation goes on asking for,
    because it was started with that number; None with dynamic allocation. ``plan``: what is wanted in place of what
    the driver says.
    """

    def __init__(self, ids: IdSource, next_id: int = 1, standing: int | None = None) -> None:
        self.live: dict[str, Executor] = {}
        self.report: DriverReport | None = None
        self.failures_in_a_row = 0
        self.next_id = next_id
        self.plan: tuple[ExecutorTotal, ...] | None = None
        self._ids = ids
        self._instructions: PipelineDirectives | None = None
        self._program: Program | None = None
        self._standing = standing
        self._lost: dict[str, LostExecutor] = {}
        self._version = 1
        self._lost_at_version: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------- what the driver says

    def take(self, report: DriverReport) -> bool:
        """Take a driver's report; false when it is not newer than the last."""
        if self.report is not None and report.version <= self.report.version:
            return False
        if self.report is None or report.app_id != self.report.app_id:
            self._lost.clear()
            self._lost_at_version.clear()
            self._version += 1
        if self.report is None:
            # An earlier leader may have said more than this one has: what this one says must be newer.
            self._version = max(self._version, report.directives_seen + 1)
        self.report = report
        for executor_id in report.registered:
            executor = self.live.get(executor_id)
            if executor is not None and not executor.registered:
                executor.registered = True
                self.failures_in_a_row = 0
        for executor_id, region in report.regions.items():
            adopted = self.live.get(executor_id)
            if adopted is not None and adopted.process is None and not adopted.region:
                adopted.region = region
        for executor_id, version in list(self._lost_at_version.items()):
            if report.directives_seen >= version:
                del self._lost_at_version[executor_id]
                del self._lost[executor_id]
        return True

    @property
    def active(self) -> bool:
        """Whether a SparkContext is up that executors can join."""
        return self.report is not None and not self.report.ended and bool(self.report.driver_url)

    def wanted(self, max_executors: int | None) -> tuple[ExecutorTotal, ...]:
        """The driver's totals, bounded by the job's own maximum; earlier profiles first. Without dynamic allocation
        the maximum is one of each profile, and what the driver was started with stands for it: the job has asked for
        no number of its own then.
        """
        if self.report is None or self.report.ended:
            return ()
        if self.plan is not None:
            return self.plan
        left = max_executors
        totals = []
        for total in sorted(self.report.totals, key=lambda total: total.profile_id):
            count = total.count if left is None else min(total.count, left)
            if left is not None and self._standing is None:
                left -= count
            elif left is not None and total.count == self._standing:
                count = left
            if count > 0:
                totals.append(ExecutorTotal(total.profile_id, total.size, count))
        return tuple(totals)

    def to_start(self, max_executors: int | None) -> list[ExecutorTotal]:
        """How many more executors of each profile should run."""
        more = []
        for total in self.wanted(max_executors):
            running = sum(
                1
                for executor in self.live.values()
                if (executor.profile_id, executor.region) == (total.profile_id, total.region) and executor.stays
            )
            if running < total.count:
                more.append(msgspec.structs.replace(total, count=total.count - running))
        return more

    def above(self, max_executors: int | None) -> list[Executor]:
        """Executors beyond the job's own maximum, the youngest that have not joined first: one that was taken for lost
        may be found again when another has its place. Without dynamic allocation the maximum is one of each profile.
        """
        if max_executors is None or len(self.live) <= max_executors:
            return []
        gone = self.to_stop()
        running = [executor for executor in self.live.values() if executor.stays and executor not in gone]
        running.sort(key=lambda executor: (not executor.registered, int(executor.executor_id)))
        if self._standing is None:
            return running[max_executors:]
        profiles = dict.fromkeys(executor.profile_id for executor in running)
        of_profiles = [[one for one in running if one.profile_id == profile] for profile in profiles]
        return [executor for group in of_profiles for executor in group[max_executors:]]

    def staying(self) -> tuple[int, int]:
        """How many executors were started and not asked to end, and how many of them serve the driver."""
        staying = [executor for executor in self.live.values() if executor.stays]
        return len(staying), sum(1 for executor in staying if executor.registered)

    def to_hand_over(self) -> list[Executor]:
        """Executors of workers that are about to go, once there is another that can have what they hold."""
        peers = any(executor.registered and executor.stays for executor in self.live.values())
        moving = [executor for executor in self.live.values() if executor.moving and not executor.stopping]
        return [executor for executor in moving if peers or not executor.registered]

    def decommission(self, executor: Executor, leave_by: float) -> None:
        """Have the driver move the executor's blocks elsewhere and end it."""
        executor.stopping = True
        executor.leave_by = leave_by
        self._version += 1

    def to_stop(self) -> list[Executor]:
        """Executors that the driver gives back, or whose application is over."""
        if self.report is None:
            return []
        return [
            executor
            for executor in self.live.values()
            if not executor.stopping
            and (
                executor.executor_id in self.report.kills or self.report.ended or executor.app_id != self.report.app_id
            )
        ]

    def required(self, max_executors: int | None) -> Counts:
        """The slots for what is wanted."""
        counts: Counts = {}
        for total in self.wanted(max_executors):
            counts[total.size.profile] = counts.get(total.size.profile, 0) + total.count
        return counts

    # ------------------------------------------------------------------------------------------- what happens to them

    def launch(
        self, total: ExecutorTotal, allocation: AllocationId, secret: str, spec: JobSpec, *, warm: bool = False
    ) -> Executor:
        """A new executor of the job ``spec`` for the slot ``allocation``. Only while :attr:`active`."""
        assert self.report is not None
        executor_id = str(self.next_id)
        self.next_id += 1
        process = ExecutorProcess(
            executor_id,
            self._ids.new_secret(),
            self.report.app_id,
            self.report.driver_url,
            total.profile_id,
            total.size,
            secret,
            spec.working_dir,
            self.report.launch,
            total.task_slots,
            spec.uploads,
            spec.python if spec.uploads is not None else None,
            warm,
        )
        executor = Executor(
            executor_id,
            process.ticket,
            self.report.app_id,
            total.profile_id,
            allocation,
            process,
            region=total.region,
        )
        self.live[executor_id] = executor
        self._version += 1
        return executor

    def adopt(self, identity: ExecutorIdentity, allocation: AllocationId) -> None:
        """An executor that an earlier leader of the job started lives in this slot."""
        executor_id = identity.executor_id
        executor = Executor(executor_id, identity.ticket, identity.app_id, identity.profile_id, allocation, None)
        if self.report is not None:
            executor.registered = executor_id in self.report.registered
            executor.region = self.report.regions.get(executor_id, "")
        self.live[executor_id] = executor
        self._version += 1

    def assign(self, executor: Executor, region: str) -> None:
        """From now on it works for another region of the pipeline."""
        executor.region = region
        executor.loose_since = None
        self._version += 1

    def instruct(self, instructions: PipelineDirectives) -> None:
        """What the program of the pipeline is to do."""
        if instructions != self._instructions:
            self._instructions = instructions
            self._version += 1

    def run(self, program: Program) -> None:
        """What the warm application is to run."""
        if program != self._program:
            self._program = program
            self._version += 1

    def unaccounted(self) -> list[str]:
        """Executors that the driver counts as its own and that nobody here knows in any slot."""
        if self.report is None:
            return []
        return [known for known in self.report.registered if known not in self.live and known not in self._lost]

    def write_off(self, executor_id: str, reason: str) -> None:
        """Nobody has shown this executor of an earlier leader: the driver is told that it is lost."""
        self._version += 1
        self._lost[executor_id] = LostExecutor(executor_id, -1, False, reason)
        self._lost_at_version[executor_id] = self._version

    def gone(self, executor_id: str, exit_code: int | None, caused_by_program: bool, reason: str) -> Executor | None:
        """An executor ended or was lost with its slot; the driver will be told."""
        executor = self.live.pop(executor_id, None)
        if executor is None:
            return None
        self._version += 1
        if self.report is not None and executor.app_id == self.report.app_id:
            code = -1 if exit_code is None else exit_code
            self._lost[executor_id] = LostExecutor(executor_id, code, caused_by_program, reason)
            self._lost_at_version[executor_id] = self._version
        return executor

    def by_allocation(self, allocation: AllocationId) -> Executor | None:
        """The executor in this slot, if one is live."""
        for executor in self.live.values():
            if executor.allocation == allocation:
                return executor
        return None

    def _regions(self) -> dict[str, str]:
        """The region of each executor; those that nobody here has seen yet keep theirs."""
        assert self.report is not None
        unseen = set(self.unaccounted())
        known = {executor.executor_id: executor.region for executor in self.live.values() if executor.region}
        return {**{one: region for one, region in self.report.regions.items() if one in unseen}, **known}

    def directives(self) -> DriverDirectives | None:
        """What the driver must know, or None when there is no application or it has seen it all."""
        if not self.active or self.report is None or self.report.directives_seen >= self._version:
            return None
        launched = {
            executor.executor_id: executor.ticket
            for executor in self.live.values()
            if executor.app_id == self.report.app_id
        }
        leaving = tuple(executor.executor_id for executor in self.live.values() if executor.leave_by is not None)
        return DriverDirectives(
            self._version,
            self.report.app_id,
            launched,
            tuple(self._lost.values()),
            leaving,
            self._regions(),
            self._instructions,
            self._program,
        )


def report_events(job: JobId, before: DriverReport | None, report: DriverReport, most: int | None) -> list[Event]:
    """What people may want to know of the step from one driver report to the next. ``most``: Spark's dynamic
    allocation does not know how many executors the job may have, so its wishes are cut to that.
    """
    events = []
    new_application = before is None or before.app_id != report.app_id
    if new_application:
        events.append(Event("application", job, fields={"app_id": report.app_id}))
    wanted = _wanted(report, most)
    if before is None or _wanted(before, most) != wanted:
        events.append(Event("executors-wanted", job, fields={"count": sum(wanted.values())}))
    for executor_id in report.registered:
        if before is None or new_application or executor_id not in before.registered:
            events.append(Event("executor-registered", job, fields={"executor": executor_id}))
    first_task = report.first_task_unix_s
    if first_task is not None and (before is None or before.first_task_unix_s is None):
        events.append(Event("first-task", job, fields={"unix_s": first_task}))
    return events


def _wanted(report: DriverReport, most: int | None) -> dict[int, int]:
    return {total.profile_id: total.count if most is None else min(total.count, most) for total in report.totals}
