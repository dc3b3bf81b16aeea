"""The regions of a pipeline job: which can run, with how many executors, and what has become of them (FLIP-138, 'Lazily
Built ExecutionGraph'; B: A-07). Pure: the JobMaster's :mod:`slotwise.jobmaster.work` carries out what is decided here.

A region goes CREATED → SCHEDULED (what it reads is there; its slots are declared) → RUNNING → FINISHED. A failed run is
followed by another, by the job's restart strategy; without one left the region has FAILED and those that read it are
CANCELED, but the others go on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slotwise.jobmaster.restart import Restarts
from slotwise.model.errors import SlotwiseError
from slotwise.model.ids import JobId
from slotwise.model.job import JobSpec
from slotwise.model.job_graph import JobGraph, decode_graph
from slotwise.model.pipeline import PipelineDirectives, PipelineOptions, PipelineReport, RegionRun, RegionState
from slotwise.model.process import ExecutorTotal
from slotwise.model.regions import Region, RegionSize, plan, regions_of, schedulable, select
from slotwise.model.requirements import Counts
from slotwise.model.resources import ResourceProfile
from slotwise.model.restart import RestartStrategy
from slotwise.protocol.effects import Event

_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass
class Run:
    """A selected region. ``share``: how many executors it has or may start. ``enough_since``: since when it could start
    with its least; ``lacking_since``: since when it could not, with nothing of the job running (monotonic seconds).
    """

    region: Region
    size: RegionSize
    full_refresh: bool
    restarts: Restarts = field(default_factory=Restarts)
    state: RegionState = RegionState.CREATED
    attempt: int = 0
    share: int = 0
    parallelism: int = 0
    reason: str = ""
    started_at: float = 0.0
    not_before: float = 0.0
    enough_since: float | None = None
    lacking_since: float | None = None

    @property
    def name(self) -> str:
        """Of its dataset."""
        return self.region.name

    @property
    def profile(self) -> ResourceProfile:
        """Of its slots."""
        return self.size.executor.profile


@dataclass
class Supply:
    """What a job has for its regions: executors at work by region, ``loose`` ones without work by their size, and
    unused slots.
    """

    at_work: dict[str, int]
    loose: dict[RegionSize, int]
    slots: dict[ResourceProfile, int]

    def available(self, size: RegionSize) -> int:
        """How many more executors of this size there could be."""
        return self.loose.get(size, 0) + self.slots.get(size.executor.profile, 0)

    def take(self, size: RegionSize) -> bool:
        """One executor of this size: a loose one first, for it need not be started."""
        profile = size.executor.profile
        if self.loose.get(size, 0):
            self.loose[size] -= 1
        elif self.slots.get(profile, 0):
            self.slots[profile] -= 1
        else:
            return False
        return True


class Pipeline:
    """``finished``: regions that earlier drivers have finished. ``failure``: why the job cannot go on."""

    def __init__(
        self, job: JobId, spec: JobSpec, finished: Iterable[str], stabilisation_s: float, wait_timeout_s: float
    ) -> None:
        assert spec.pipeline is not None
        self.graph: JobGraph | None = None
        self.runs: dict[str, Run] = {}
        self.failure: str = ""
        self.options: PipelineOptions = spec.pipeline
        self._checked: str | None = None
        self._job = job
        self._spec = spec
        self._finished = set(finished)
        self._stabilisation_s = stabilisation_s
        self._wait_timeout_s = wait_timeout_s
        # This driver's program has said what it knows.
        self._heard = False
        self._events: list[Event] = []

    # ------------------------------------------------------------------------------------------- what the program says

    def take(self, report: PipelineReport, strategy: RestartStrategy | None, now: float) -> list[str]:
        """Take the program's word; returns the regions that have finished and were not known to have."""
        if report.failed:
            self.failure = self.failure or report.failed
            return []
        if report.graph is not None and self.graph is None:
            self._plan(report.graph)
        if self.graph is None:
            return []
        first, self._heard = not self._heard, True
        if report.checked is not None and self._checked is None:
            self._checked = report.checked
            self.failure = report.checked
        finished = []
        for status in report.regions:
            run = self.runs.get(status.region)
            if run is None or run.state.is_final:
                continue
            if first and run.state is not RegionState.RUNNING and status.attempt > run.attempt:
                # An earlier leader of the job had started it.
                run.attempt = status.attempt
                run.started_at = now
                if not status.state.is_final:
                    run.share = run.parallelism = 0
                    self._move(run, RegionState.RUNNING)
            if status.attempt != run.attempt:
                continue
            if status.state is RegionState.FINISHED:
                self._finished.add(run.name)
                finished.append(run.name)
                self._move(run, RegionState.FINISHED)
            elif status.state is not RegionState.RUNNING and run.state is RegionState.RUNNING:
                self._failed(run, status.reason or "it was cancelled", strategy, now)
        self._schedule()
        return finished

    def _plan(self, text: str) -> None:
        try:
            graph = decode_graph(text.encode())
            regions = regions_of(graph, self._spec.conf)
            selected = select(
                graph,
                regions,
                refresh=self.options.refresh,
                full_refresh=self.options.full_refresh,
                full_refresh_all=self.options.full_refresh_all,
            )
        except SlotwiseError as error:
            self.failure = str(error)
            return
        self.graph = graph
        executor = self._spec.executor
        for region in regions:
            if region.name in selected:
                size = region.size or RegionSize(executor, executor.cores)
                run = self.runs[region.name] = Run(region, size, selected[region.name])
                if region.name in self._finished:
                    run.state = RegionState.FINISHED
        text = json.dumps(plan(self._job, graph.name, [run.region for run in self.runs.values()], {}))
        self._events.append(Event("job-graph", self._job, fields={"plan": text}))

    def _failed(self, run: Run, reason: str, strategy: RestartStrategy | None, now: float) -> None:
        delay_s = run.restarts.delay_s(strategy, now - run.started_at) if strategy is not None else None
        if delay_s is None:
            self._give_up(run, reason)
            return
        self._move(run, RegionState.SCHEDULED, reason)
        run.not_before = now + delay_s
        run.share = 0
        run.enough_since = run.lacking_since = None

    def _give_up(self, run: Run, reason: str) -> None:
        self._move(run, RegionState.FAILED, reason)
        self._schedule()

    def driver_gone(self) -> None:
        """The driver has ended, and its regions with it; another driver may follow."""
        self._heard = False
        for run in self.runs.values():
            run.share = 0
            run.enough_since = run.lacking_since = None
            if run.state is RegionState.RUNNING:
                self._move(run, RegionState.SCHEDULED, "the driver has ended")

    # ------------------------------------------------------------------------------------------- deciding

    def _schedule(self) -> None:
        """Regions whose inputs are there can be scheduled; those whose inputs will not come are given up (A-07)."""
        finished = {run.name for run in self._in(RegionState.FINISHED)}
        regions = [run.region for run in self.runs.values()]
        ready = {region.name for region in schedulable(regions, self.runs, (), finished)}
        for run in self._in(RegionState.CREATED):
            needs = [self.runs[need] for need in run.region.needs if need in self.runs]
            lost = next((need for need in needs if need.state in (RegionState.FAILED, RegionState.CANCELED)), None)
            if lost is not None:
                self._move(run, RegionState.CANCELED, f"{lost.name} has failed, which it reads")
            elif run.name in ready:
                self._move(run, RegionState.SCHEDULED)

    def _move(self, run: Run, state: RegionState, reason: str = "") -> None:
        run.state = state
        run.reason = reason
        fields: dict[str, str | int | float | None] = {
            "region": run.name,
            "state": state.value,
            "attempt": run.attempt,
            "parallelism": run.parallelism,
        }
        if reason:
            fields["reason"] = reason
        self._events.append(Event("region", self._job, fields=fields))

    def decide(self, supply: Supply, most: int | None, now: float) -> None:
        """Give out what there is: running regions keep what they have; of the others those that can have their least
        start, first come first served; what is left goes round.
        """
        running = self._in(RegionState.RUNNING)
        for run in running:
            run.share = min(supply.at_work.get(run.name, 0), self.wanted(run, most))
        shares: dict[str, int] = {}
        for run in self.waiting():
            least = run.region.parallelism.least
            if now < run.not_before or supply.available(run.size) < least:
                run.enough_since = None
                self._lacks(run, bool(running), now)
                continue
            run.lacking_since = None
            if run.enough_since is None:
                run.enough_since = now
            for _ in range(least):
                supply.take(run.size)
            shares[run.name] = least
        for run in running:
            shares[run.name] = run.share
        self._share_out(shares, supply, most)
        for run in running:
            run.share = shares[run.name]
        for run in self._in(RegionState.SCHEDULED):
            given = shares.get(run.name, 0)
            if given and run.enough_since is not None:
                stable = now >= run.enough_since + self._stabilisation_s
                if stable or given >= self.wanted(run, most):
                    self._start(run, given, now)
        self._schedule()

    @property
    def _may_start(self) -> bool:
        return self._heard and not self.options.dry_run

    def _share_out(self, shares: dict[str, int], supply: Supply, most: int | None) -> None:
        growing = [self.runs[name] for name in shares]
        while growing:
            growing = [
                run
                for run in growing
                if shares[run.name] < self.wanted(run, most) and supply.take(run.size) and _one_more(shares, run.name)
            ]

    def _start(self, run: Run, share: int, now: float) -> None:
        run.share = run.parallelism = share
        run.attempt += 1
        run.started_at = now
        run.enough_since = run.lacking_since = None
        self._move(run, RegionState.RUNNING)

    def _lacks(self, run: Run, others_run: bool, now: float) -> None:
        """Waiting counts while nothing of the job itself is what the region waits for."""
        if others_run or now < run.not_before:
            run.lacking_since = None
        elif run.lacking_since is None:
            run.lacking_since = now
        elif 0 <= self._wait_timeout_s <= now - run.lacking_since:
            least = run.region.parallelism.least
            waited = f"{self._wait_timeout_s:g} s"
            self._give_up(run, f"{run.name}: {least} slot(s) of ({run.profile}) were not there after {waited}")

    def on_hopeless(self, profile: ResourceProfile | None, detail: str) -> None:
        """Slots of this size will never be there."""
        for run in self._in(RegionState.SCHEDULED):
            if run.profile == profile:
                self._give_up(run, f"{run.name}: {detail}")

    def wanted(self, run: Run, most: int | None) -> int:
        """How many executors the region would use."""
        bound = run.region.parallelism.most
        if bound is None:
            bound = self._spec.initial_executors if most is None else most
        return max(bound, run.region.parallelism.least)

    def waiting(self) -> list[Run]:
        """The regions that could run if they had enough."""
        return self._in(RegionState.SCHEDULED) if self._may_start else []

    def later(self, most: int | None) -> dict[RegionSize, int]:
        """The executors, by size, that one of the regions which cannot run yet would use."""
        found: dict[RegionSize, int] = {}
        for run in self._in(RegionState.CREATED):
            found[run.size] = max(found.get(run.size, 0), self.wanted(run, most))
        return found

    def _in(self, state: RegionState) -> list[Run]:
        return [run for run in self.runs.values() if run.state is state]

    # ------------------------------------------------------------------------------------------- what follows from it

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        if self.options.dry_run:
            return self._checked is not None
        return self.graph is not None and all(run.state.is_final for run in self.runs.values())

    @property
    def reason(self) -> str:
        """Why the job has failed; empty when it has not."""
        if self.failure:
            return self.failure
        return "\n".join(run.reason for run in self._in(RegionState.FAILED))

    def required(self, most: int | None, helpers: int) -> Counts:
        """The slots for what runs and what could; before that is known, and for a dry run, ``helpers`` of the job's own
        size.
        """
        counts: Counts = {}
        if helpers:
            counts[self._spec.executor.profile] = helpers
        for state in (RegionState.RUNNING, RegionState.SCHEDULED):
            for run in self._in(state) if not self.options.dry_run else ():
                counts[run.profile] = counts.get(run.profile, 0) + self.wanted(run, most)
        return counts

    def totals(self) -> tuple[ExecutorTotal, ...]:
        """The executors that should run."""
        return tuple(
            ExecutorTotal(0, run.size.executor, run.share, run.name, run.size.task_slots)
            for run in self._in(RegionState.RUNNING)
        )

    def directives(self) -> PipelineDirectives:
        """What the program is to do."""
        if self.graph is None or not self._heard:
            return PipelineDirectives()
        runs = tuple(
            RegionRun(run.name, run.attempt, run.full_refresh, self._conf(run)) for run in self._in(RegionState.RUNNING)
        )
        check = self.options.dry_run and self._checked is None
        return PipelineDirectives(True, runs, check, stop=self.over and not self.reason)

    def _conf(self, run: Run) -> dict[str, str]:
        """Shuffles have as many partitions as the region runs tasks at once, unless somebody has said how many."""
        assert self.graph is not None
        stated: list[Mapping[str, str]] = [self._spec.conf, self.graph.configuration]
        if any(_PARTITIONS in conf for conf in stated):
            return {}
        return {_PARTITIONS: str(max(run.parallelism * run.size.task_slots, 1))}

    def due(self, now: float) -> float | None:
        """When :meth:`decide` may have something new without any news."""
        times = []
        for run in self._in(RegionState.SCHEDULED):
            if run.enough_since is not None:
                times.append(run.enough_since + self._stabilisation_s)
            elif run.lacking_since is not None and self._wait_timeout_s >= 0:
                times.append(run.lacking_since + self._wait_timeout_s)
            else:
                times.append(run.not_before)
        return min((at for at in times if at > now), default=None)

    def events(self) -> list[Event]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        return events


def _one_more(shares: dict[str, int], name: str) -> bool:
    shares[name] += 1
    return True
