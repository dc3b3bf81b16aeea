"""A model of a pipeline's program, for the models of Spark drivers: what it says when it is told what to run, and when
executors come to its regions. Only what a JobMaster can see is modelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from slotwise.model.job_graph import JobGraph
from slotwise.model.pipeline import PipelineDirectives, PipelineReport, RegionState, RegionStatus


@dataclass
class PipelineBehaviour:
    """What a project is and does. ``failures``: how often a region's run fails before one ends well; these are counted
    over all drivers. ``broken``: its definitions cannot be read. ``runs``: every run that was begun, as (driver,
    region, attempt); ``finished``: the regions that any driver has finished.
    """

    graph: JobGraph
    region_s: float = 10.0
    failures: dict[str, int] = field(default_factory=dict)
    broken: str = ""
    runs: list[tuple[str, str, int]] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        """The graph as the program says it."""
        return msgspec.json.encode(self.graph).decode()


class PipelineModel:
    """The program of one driver, called ``name``."""

    def __init__(self, name: str, behaviour: PipelineBehaviour) -> None:
        self.stopped = False
        self._name = name
        self._behaviour = behaviour
        self._graph: str | None = None if behaviour.broken else behaviour.text
        self._checked: str | None = None
        self._statuses: dict[str, RegionStatus] = {}
        # Regions whose run is on its way to its end.
        self._working: set[str] = set()

    @property
    def report(self) -> PipelineReport:
        """What the program says now."""
        return PipelineReport(self._graph, self._behaviour.broken, tuple(self._statuses.values()), self._checked)

    def tell(self, directives: PipelineDirectives) -> None:
        """Take the JobMaster's word."""
        self._graph = None if directives.graph_known else self._behaviour.text
        if not directives.graph_known:
            return
        if directives.check:
            self._checked = ""
        self.stopped = directives.stop
        wanted = {run.region: run.attempt for run in directives.runs}
        for region, status in list(self._statuses.items()):
            if status.state is RegionState.RUNNING and wanted.get(region) != status.attempt:
                self._end(region, RegionState.CANCELED)
        for run in directives.runs:
            known = self._statuses.get(run.region)
            if known is None or known.attempt < run.attempt:
                self._statuses[run.region] = RegionStatus(run.region, run.attempt, RegionState.RUNNING)
                self._working.discard(run.region)
                self._behaviour.runs.append((self._name, run.region, run.attempt))

    def to_begin(self, served: Iterable[str]) -> list[tuple[str, int]]:
        """Runs that can begin to work now that executors serve these regions: (region, attempt) of each; after
        ``region_s`` :meth:`finish` is to be called.
        """
        begun = []
        for region in dict.fromkeys(served):
            status = self._statuses.get(region)
            if status is not None and status.state is RegionState.RUNNING and region not in self._working:
                self._working.add(region)
                begun.append((region, status.attempt))
        return begun

    def finish(self, region: str, attempt: int, served: Iterable[str]) -> bool:
        """The work of a run is done, if it still runs and has an executor; true if something is new."""
        status = self._statuses[region]
        if status.attempt != attempt or status.state is not RegionState.RUNNING:
            return False
        self._working.discard(region)
        if region not in served:
            return False
        if self._behaviour.failures.get(region, 0) > 0:
            self._behaviour.failures[region] -= 1
            self._end(region, RegionState.FAILED, "simulated: the query failed")
        else:
            self._behaviour.finished.add(region)
            self._end(region, RegionState.FINISHED)
        return True

    def _end(self, region: str, state: RegionState, reason: str = "") -> None:
        self._working.discard(region)
        self._statuses[region] = msgspec.structs.replace(self._statuses[region], state=state, reason=reason)
